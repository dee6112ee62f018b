// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"cmp"
	"testing"
)

func TestVersionsAreOrdered(t *testing.T) {
	for _, rising := range [][]string{
		{"", "0", "1", "2", "10", "100"},
		{"~", "", "a", "1"},
		{"1~rc1", "1~rc2", "1", "1-1", "1-2", "1^post", "1.1", "1a"},
		{"122.1", "123~rc1-1", "123", "123-a", "123-a.1", "123-1", "123-1.1", "123^post1", "123.a-1", "123.1-1", "123a-1",
			"124-1"}, // of the UAPI version format specification
		{"20241105", "20241105.1", "20241112"},
		{"4.18.0-553.el8", "5.14.0-70.el9", "5.14.0-503.el9", "5.14.0-503.11.1.el9_5", "5.14.0-503.15.1.el9_5"},
		{"6.1.0-9", "6.1.0-28", "6.1.0-100", "6.2.0-1"},
		{"6.12~rc6", "6.12", "6.12.6"},
		{"6.11.4-301.fc40", "6.11.4-301.fc41", "6.11.5-200.fc40"},
		{"0.18446744073709551615", "0.18446744073709551616", "0.99999999999999999999999"},
	} {
		for i, a := range rising {
			for j, b := range rising {
				if got := compareVersions(a, b); got != cmp.Compare(i, j) {
					t.Errorf("compareVersions(%q, %q) = %d", a, b, got)
				}
			}
		}
	}
	for _, same := range [][2]string{{"1", "01"}, {"1.0", "1.00"}, {"1+2", "1/2"}, {"1é.2", "1.2"}, {"\xff", ""}} {
		if got := compareVersions(same[0], same[1]); got != 0 {
			t.Errorf("compareVersions(%q, %q) = %d, want 0", same[0], same[1], got)
		}
	}
}

func FuzzCompareVersions(f *testing.F) {
	f.Add("6.1.0-28", "6.1.0-9", "6.1.0~rc1")
	f.Add("1~-^.a", "1--", "\xff")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		ab, bc, ac := compareVersions(a, b), compareVersions(b, c), compareVersions(a, c)
		if compareVersions(b, a) != -ab || compareVersions(a, a) != 0 {
			t.Errorf("%q and %q: %d, and %d the other way", a, b, ab, compareVersions(b, a))
		}
		if ab == bc && ac != ab || ab == 0 && ac != bc {
			t.Errorf("%q, %q, %q: %d and %d, but %d", a, b, c, ab, bc, ac)
		}
	})
}
