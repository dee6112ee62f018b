// SPDX-License-Identifier: Apache-2.0

// Package text bounds what others wrote: the bus, the API server and files may send anything of any length, and it ends
// up in terminals, logs, annotations and D-Bus messages.
package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line is s as one line of at most most bytes for people to read: Plain, and Shorten where it is longer. It looks at no
// more of s than can be left, since s may be megabytes.
func Line(s string, most int) string {
	return Shorten(Plain(s[:min(len(s), 4*most)]), most)
}

// Plain is s with a space for each character that cannot be printed and for each byte that is not UTF-8, without spaces
// at either end. Control characters would drive the terminal of the reader, and D-Bus rejects broken UTF-8. The result
// is never longer than s.
func Plain(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
}

// Cut is at most the first most bytes of s, whole characters only: for what is compared, where a mark would be part of
// the name.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// Shorten is Cut with "…" at the end of what is left, within most bytes.
func Shorten(s string, most int) string {
	const mark = "…"
	if len(s) <= most {
		return s
	}
	return Cut(s, max(most-len(mark), 0)) + mark
}
