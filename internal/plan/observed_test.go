// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"
)

func TestLevelsAndKindsPrintAsTheWordsThatScriptsRead(t *testing.T) {
	t.Parallel()
	var got []string
	for _, v := range []fmt.Stringer{
		NotRequired, Required, Unknown, Level(-1), KindSoft, KindKexec, KindFull, Kind(0), Kind(9),
	} {
		got = append(got, v.String())
	}
	want := []string{"not-required", "required", "unknown", "unknown(-1)", "soft", "kexec", "full", "", "unknown(9)"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
