// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"cmp"
	"strings"
)

// compareVersions orders two versions as systemd does (UAPI version format specification); for what kernels are called,
// rpm and dpkg agree with it. Parts of digits compare as numbers and are newer than words, "~" is older than the end,
// and what goes on is newer than what ends.
func compareVersions(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, meaningless), strings.TrimLeftFunc(b, meaningless)
		if c := compareMark(&a, &b, "~"); c != 0 {
			return c
		}
		if a == "" || b == "" {
			return cmp.Compare(len(a), len(b))
		}
		for _, mark := range []string{"-", "^", "."} {
			if c := compareMark(&a, &b, mark); c != 0 {
				return c
			}
		}
		if c := comparePart(&a, &b); c != 0 {
			return c
		}
	}
}

// compareMark takes mark from the front of both. The one that has it alone is older.
func compareMark(a, b *string, mark string) int {
	restA, hasA := strings.CutPrefix(*a, mark)
	restB, hasB := strings.CutPrefix(*b, mark)
	switch {
	case hasA && !hasB:
		return -1
	case hasB && !hasA:
		return 1
	}
	*a, *b = restA, restB
	return 0
}

// comparePart takes a number from the front of both, or a word where neither begins with a digit.
func comparePart(a, b *string) int {
	numberA, restA := cutLeft(*a, isDigit)
	numberB, restB := cutLeft(*b, isDigit)
	if numberA == "" && numberB == "" {
		wordA, restA := cutLeft(*a, isLetter)
		wordB, restB := cutLeft(*b, isLetter)
		*a, *b = restA, restB
		return strings.Compare(wordA, wordB)
	}
	*a, *b = restA, restB
	if numberA == "" || numberB == "" {
		return cmp.Compare(len(numberA), len(numberB))
	}
	// Without leading zeros the longer one is greater: no number is too large.
	numberA, numberB = strings.TrimLeft(numberA, "0"), strings.TrimLeft(numberB, "0")
	return cmp.Or(cmp.Compare(len(numberA), len(numberB)), strings.Compare(numberA, numberB))
}

// cutLeft splits s after its longest beginning of characters that are in.
func cutLeft(s string, in func(rune) bool) (head, rest string) {
	rest = strings.TrimLeftFunc(s, in)
	return s[:len(s)-len(rest)], rest
}

func isDigit(r rune) bool { return r >= '0' && r <= '9' }

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

func meaningless(r rune) bool { return !isDigit(r) && !isLetter(r) && !strings.ContainsRune("~-^.", r) }
