// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"

	"github.com/BurntSushi/toml"
)

// maxDepth bounds the dots and brackets around one value. The TOML parser needs memory with the square of the depth: a
// file of 1 MiB can take gigabytes.
const maxDepth = 16

// place is where a key, a table or an element of an array stands in a TOML text, and what lies below it. The TOML
// parser gives no positions of keys. The methods are safe on nil.
type place struct {
	number int // of the line, from 1
	keys   map[string]*place
	items  []*place
}

// key returns the place of a key in a table, or the table's own place when it has no such key.
func (p *place) key(name string) *place {
	if p == nil || p.keys[name] == nil {
		return p.alone()
	}
	return p.keys[name]
}

// item returns the place of an element of an array, or the array's own place when there is no such element.
func (p *place) item(i int) *place {
	if p == nil || i < 0 || i >= len(p.items) {
		return p.alone()
	}
	return p.items[i]
}

func (p *place) line() int {
	if p == nil {
		return 0
	}
	return p.number
}

// alone is the same place without what lies below it.
func (p *place) alone() *place { return &place{number: p.line()} }

// locate finds the places of everything in a TOML text. It accepts more than TOML and stops where it understands
// nothing: what is wrong with the text is for the parser to say. tooDeep is the line with more than maxDepth dots and
// brackets around a value, or 0.
func locate(text string) (root *place, tooDeep int) {
	for _, mark := range []string{"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"} {
		if strings.HasPrefix(text, mark) { // a byte order mark, which the parser skips too
			text = text[len(mark):]
			break
		}
	}
	s := &scanner{text: text, line: 1}
	root = &place{number: 1}
	table := root
	for s.skip(true); s.pos < len(s.text) && !s.deep; s.skip(true) {
		if s.peek() == '[' {
			if table = s.header(root); table == nil {
				break
			}
		} else if !s.pair(table, 0) {
			break
		}
	}
	if s.deep {
		return root, s.here()
	}
	return root, 0
}

// scanner walks over a TOML text. Its methods return false or nil where they understand nothing.
type scanner struct {
	text    string
	pos     int
	line    int // of counted
	counted int
	deep    bool
}

// here returns the line of the present position.
func (s *scanner) here() int {
	s.line += strings.Count(s.text[s.counted:s.pos], "\n")
	s.counted = s.pos
	return s.line
}

func (s *scanner) peek() byte {
	if s.pos < len(s.text) {
		return s.text[s.pos]
	}
	return 0
}

func (s *scanner) take(c byte) bool {
	if s.peek() != c || s.pos >= len(s.text) {
		return false
	}
	s.pos++
	return true
}

// skip passes blanks, and with lines also line ends and comments.
func (s *scanner) skip(lines bool) {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; {
		case c == ' ' || c == '\t':
			s.pos++
		case lines && (c == '\n' || c == '\r'):
			s.pos++
		case lines && c == '#':
			s.pos += until(s.text[s.pos:], "\n")
		default:
			return
		}
	}
}

// until returns the index of the first of chars in text, or its length.
func until(text, chars string) int {
	if i := strings.IndexAny(text, chars); i >= 0 {
		return i
	}
	return len(text)
}

// header reads [table] or [[table]] and returns the place of that table.
func (s *scanner) header(root *place) *place {
	number := s.here()
	s.take('[')
	array := s.take('[')
	names, ok := s.names(0)
	if !ok || !s.take(']') || array && !s.take(']') {
		return nil
	}
	table := root
	for i, name := range names {
		table = table.child(name, number)
		last := i == len(names)-1
		switch {
		case last && array:
			item := &place{number: number}
			table.items = append(table.items, item)
			table = item
		case len(table.items) > 0: // [a.b] under [[a]] belongs to the newest a
			table = table.items[len(table.items)-1]
		case last:
			table.number = number // it may have been made by [a.b] before
		}
	}
	return table
}

// child returns the place of a key, which it adds when it is new.
func (p *place) child(name string, number int) *place {
	if child := p.keys[name]; child != nil {
		return child
	}
	if p.keys == nil {
		p.keys = map[string]*place{}
	}
	child := &place{number: number}
	p.keys[name] = child
	return child
}

// pair reads key = value into a table.
func (s *scanner) pair(table *place, depth int) bool {
	number := s.here()
	names, ok := s.names(depth)
	if !ok || !s.take('=') {
		return false
	}
	for _, name := range names {
		table = table.child(name, number)
	}
	return s.value(table, depth+len(names))
}

// names reads a dotted key and the blanks around it.
func (s *scanner) names(depth int) ([]string, bool) {
	var names []string
	for {
		s.skip(false)
		name, ok := s.name()
		if !ok {
			return nil, false
		}
		names = append(names, name)
		if depth+len(names) > maxDepth {
			s.deep = true
			return nil, false
		}
		s.skip(false)
		if !s.take('.') {
			return names, true
		}
	}
}

func (s *scanner) name() (string, bool) {
	start := s.pos
	switch s.peek() {
	case '"', '\'':
		if !s.quoted() {
			return "", false
		}
		raw := s.text[start:s.pos]
		if raw[0] == '\'' || !strings.Contains(raw, `\`) {
			return raw[1 : len(raw)-1], true
		}
		var key struct{ Name string } // the parser knows the escapes
		_, err := toml.Decode("name = "+raw, &key)
		return key.Name, err == nil
	default:
		s.pos += until(s.text[s.pos:], " \t\r\n.=[]{}\"'#,")
		return s.text[start:s.pos], s.pos > start
	}
}

// quoted passes a string on one line.
func (s *scanner) quoted() bool {
	quote := s.peek()
	for s.pos++; s.pos < len(s.text); s.pos++ {
		switch c := s.text[s.pos]; {
		case c == quote:
			s.pos++
			return true
		case c == '\n':
			return false
		case c == '\\' && quote == '"':
			s.pos++
		}
	}
	return false
}

// value reads a value whose place is p.
func (s *scanner) value(p *place, depth int) bool {
	if depth > maxDepth {
		s.deep = true
		return false
	}
	s.skip(false)
	rest := s.text[s.pos:]
	switch {
	case strings.HasPrefix(rest, `"""`), strings.HasPrefix(rest, "'''"):
		return s.multiline(rest[:3])
	case s.peek() == '"', s.peek() == '\'':
		return s.quoted()
	case s.take('['):
		return s.array(p, depth)
	case s.take('{'):
		return s.inlineTable(p, depth)
	}
	length := until(rest, ",]}#\r\n")
	s.pos += length
	return length > 0
}

// multiline passes a string in three quotes. One or two more quotes at its end belong to the text.
func (s *scanner) multiline(quotes string) bool {
	for s.pos += 3; s.pos < len(s.text); s.pos++ {
		switch rest := s.text[s.pos:]; {
		case rest[0] == '\\' && quotes[0] == '"':
			s.pos++
		case strings.HasPrefix(rest, quotes):
			s.pos += 3
			for more := 0; more < 2 && s.take(quotes[0]); more++ {
			}
			return true
		}
	}
	return false
}

func (s *scanner) array(p *place, depth int) bool {
	for {
		s.skip(true)
		if s.take(']') {
			return true
		}
		item := &place{number: s.here()}
		p.items = append(p.items, item)
		if !s.value(item, depth+1) {
			return false
		}
		s.skip(true)
		if !s.take(',') && s.peek() != ']' {
			return false
		}
	}
}

func (s *scanner) inlineTable(p *place, depth int) bool {
	for {
		s.skip(true)
		if s.take('}') {
			return true
		}
		if !s.pair(p, depth+1) {
			return false
		}
		s.skip(true)
		if !s.take(',') && s.peek() != '}' {
			return false
		}
	}
}
