// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kured-agent/kured-agent/internal/text"
)

// Problem is one thing that is wrong with the configuration.
type Problem struct {
	File    string
	Line    int    // from 1; 0: the file as a whole
	Key     string // table and key, e.g. "window.start"; empty: no key is concerned
	Message string
}

func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if p.Key != "" {
		b.WriteString(": " + p.Key)
	}
	b.WriteString(": " + p.Message)
	return strings.Map(printable, b.String())
}

// printable keeps a problem on its line, and the terminal of its reader as it is.
func printable(r rune) rune {
	if unicode.IsControl(r) {
		return utf8.RuneError
	}
	return r
}

// Error is everything that is wrong with the configuration, in the order of the files and lines.
type Error struct {
	Problems []Problem
}

// Error prints one problem a line, such as "config.toml:12: window.start: ...".
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// sortProblems orders problems by file, in the order in which the files are read, by line and by key.
func sortProblems(problems []Problem, files []string) {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(slices.Index(files, a.File), slices.Index(files, b.File)),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Key, b.Key))
	})
}

// quote prints a value of the admin's, cut to a length that fits a line.
func quote(s string) string {
	if short := text.Cut(s, 64); len(short) < len(s) {
		return strconv.Quote(short) + "..."
	}
	return strconv.Quote(s)
}

// quoted prints names in quotes.
func quoted(names []string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = strconv.Quote(name)
	}
	return all
}

// choices prints names to choose from: "a", "b" or "c".
func choices(names []string) string {
	all := quoted(names)
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// nearest returns the known name that s is probably a slip of, or "".
func nearest(s string, known []string) string {
	const longest = 64 // no name of ours is longer, and the distance takes the product of both lengths
	if len(s) > longest {
		return ""
	}
	s = strings.ReplaceAll(strings.ToLower(s), "-", "_")
	best, name := 1+max(1, len(s)/3), ""
	for _, k := range known {
		if d := distance(s, strings.ReplaceAll(strings.ToLower(k), "-", "_")); d < best {
			best, name = d, k
		}
	}
	return name
}

// distance counts the bytes to insert, delete, replace or swap with their neighbour to turn a into b.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replaced := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}

// didYouMean is the end of a message about an unknown name: the nearest known one, else all of them.
func didYouMean(s string, known []string) string {
	if name := nearest(s, known); name != "" {
		return fmt.Sprintf("did you mean %q?", name)
	}
	return "known here: " + strings.Join(quoted(known), ", ")
}
