// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// RebootKind is the kind of reboot to ask for: at least method and at least what each reason needs, and the least of
// those that this host is able to do. A full one always is.
func RebootKind(method Kind, reasons []Reason, able []Kind) Kind {
	kind := max(method, KindSoft)
	for _, r := range reasons {
		kind = max(kind, r.Kind)
	}
	if len(reasons) == 0 {
		return KindFull
	}
	for kind < KindFull && !slices.Contains(able, kind) {
		kind++
	}
	return min(kind, KindFull)
}
