// SPDX-License-Identifier: Apache-2.0

package text

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestALineIsPrintableAndMarkedWhereItWasCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		most       int
		want       string
	}{
		{"plain", "PodDisruptionBudget default/web", 40, "PodDisruptionBudget default/web"},
		{"as long as it may be", "abcdef", 6, "abcdef"},
		{"too long", "abcdefg", 6, "abc…"},
		{"cut inside a character", "aéééé", 6, "aé…"},
		{"several lines", " two\r\nlines\t", 40, "two  lines"},
		{"a terminal's escape", "\x1b[2Jgone", 40, "[2Jgone"},
		{"text that runs backwards", "a\u202eb\u2028c", 40, "a b c"},
		{"broken bytes", "a\xff\xfeb", 40, "a  b"},
		{"nothing", "", 40, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := Line(c.text, c.most); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestCutLeavesNoMark(t *testing.T) {
	t.Parallel()
	for most, want := range []string{"", "a", "a", "aé", "aéb", "aéb"} {
		if got := Cut("aéb", most); got != want {
			t.Errorf("%d bytes: %q, want %q", most, got, want)
		}
	}
}

func TestMegabytesAreNotReadToTheEnd(t *testing.T) {
	long := strings.Repeat("x\n", 8<<20)
	if n := testing.AllocsPerRun(10, func() { Line(long, 64) }); n > 4 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzLine(f *testing.F) {
	f.Add("linux-image-6.1\n", 4)
	f.Add("\xff\xfeé", 3)
	f.Fuzz(func(t *testing.T, s string, most int) {
		most = min(max(most, len("…")), 1000)
		if plain := Plain(s); len(plain) > len(s) {
			t.Errorf("Plain(%q) grew to %q", s, plain)
		}
		if cut := Cut(s, most); len(cut) > most || !strings.HasPrefix(s, cut) {
			t.Errorf("Cut(%q, %d) = %q", s, most, cut)
		}
		got := Line(s, most)
		if len(got) > most || !utf8.ValidString(got) ||
			strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("Line(%q, %d) = %q", s, most, got)
		}
		if again := Line(got, most); again != got {
			t.Errorf("Line(%q, %d) = %q is not stable: %q", s, most, got, again)
		}
	})
}
