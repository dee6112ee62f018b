// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"path"
	"slices"
	"strings"
)

// aptLast is the last setting of a name in files written for apt: name "value"; or nested, as in
//
//	Unattended-Upgrade { Automatic-Reboot "true"; };
//
// Case does not count in names. A file that "#include" names is not followed.
func aptLast(files []file, name string) setting {
	var s setting
	for _, f := range files {
		aptSettings(f.content, func(key, value string, line int) {
			switch {
			case key == aptClear && aptBelow(name, value):
				s = setting{}
			case strings.EqualFold(key, name):
				s = setting{path: f.path, line: line, key: name, value: value, apt: true}
			}
		})
	}
	return s
}

// aptClear is the directive that forgets a name and all below it.
const aptClear = "#clear"

func aptBelow(name, cleared string) bool {
	return strings.EqualFold(name, cleared) ||
		len(name) > len(cleared) && strings.EqualFold(name[:len(cleared)], cleared) && name[len(cleared):][:1] == ":"
}

// aptSettings calls set for each assignment of a file, in order; key is the whole name.
func aptSettings(content string, set func(key, value string, line int)) {
	var blocks []string // the whole names of those that are open
	var words []string  // of the statement so far
	line := 0           // in which it began
	prefix := func() string {
		if len(blocks) == 0 {
			return ""
		}
		return blocks[len(blocks)-1] + "::"
	}
	assign := func() {
		// One word alone is an item of a list.
		if len(words) > 1 {
			set(prefix()+words[0], strings.Join(words[1:], " "), line)
		}
		words = words[:0]
	}
	aptTokens(content, func(token aptToken) {
		switch {
		case !token.mark:
			if len(words) == 0 {
				line = token.line
			}
			words = append(words, token.text)
		case token.text == "{":
			name := prefix()
			if len(words) > 0 {
				name += words[0]
			}
			assign()               // a block may have a value as well
			if len(blocks) < 100 { // deeper is nonsense, and quadratic
				blocks = append(blocks, name)
			}
		case token.text == "}":
			assign()
			blocks = blocks[:max(len(blocks)-1, 0)]
		default:
			assign()
		}
	})
}

type aptToken struct {
	text string
	line int
	mark bool // one of { } ; and not a word
}

// aptTokens cuts a file into words and marks. Quotes hold a word together, within a line.
func aptTokens(content string, emit func(aptToken)) {
	line := 1
	for rest := content; rest != ""; {
		n := aptSpace(rest)
		switch {
		case n > 0: // space or comment
		case strings.ContainsRune("{};", rune(rest[0])):
			n = 1
			emit(aptToken{text: rest[:1], line: line, mark: true})
		default:
			var word string
			word, n = aptWord(rest)
			emit(aptToken{text: word, line: line})
		}
		line += strings.Count(rest[:n], "\n")
		rest = rest[n:]
	}
}

// aptWord is the word with which s begins, and its length in s, at least 1. Parts in quotes, which end with their line,
// belong to the word that they touch.
func aptWord(s string) (word string, n int) {
	var b strings.Builder
	for n < len(s) && !strings.ContainsRune("{};", rune(s[n])) && aptSpace(s[n:]) == 0 {
		if s[n] != '"' {
			b.WriteByte(s[n])
			n++
			continue
		}
		quoted, _, _ := strings.Cut(s[n+1:], "\n")
		quoted, _, closed := strings.Cut(quoted, `"`)
		b.WriteString(quoted)
		n += 1 + len(quoted)
		if closed {
			n++
		}
	}
	return b.String(), n
}

// aptSpace is the length of the white space or comment with which s begins, or 0.
func aptSpace(s string) int {
	directive := strings.HasPrefix(s, aptClear) || strings.HasPrefix(s, "#include")
	end := ""
	switch {
	case strings.ContainsRune(" \t\r\n", rune(s[0])):
		return 1
	case strings.HasPrefix(s, "/*"):
		end = "*/"
	case strings.HasPrefix(s, "//") || s[0] == '#' && !directive:
		end = "\n"
	default:
		return 0
	}
	_, rest, _ := strings.Cut(s, end)
	return len(s) - len(rest)
}

// aptIgnores says whether apt passes over a file in its directory: a name has no extension or ".conf".
func aptIgnores(p string) bool {
	name := path.Base(p)
	ext := path.Ext(name)
	return ext != "" && ext != ".conf" || strings.ContainsFunc(name, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("_.-", r)
	})
}

// aptTrue is how apt reads a boolean whose default is false.
func aptTrue(value string) bool {
	return slices.Contains([]string{"1", "yes", "true", "with", "on", "enable"}, strings.ToLower(value))
}
