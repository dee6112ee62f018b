// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"fmt"
	"strings"
)

// UnitPath is the object of a unit of systemd: each byte but letters and digits, and a leading digit, becomes _xx.
func UnitPath(name string) string {
	var b strings.Builder
	b.WriteString("/org/freedesktop/systemd1/unit/")
	if name == "" {
		b.WriteByte('_')
	}
	for i, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if letter || c >= '0' && c <= '9' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}
