// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// table is one TOML table while it is read. Each key is asked for by the method of its type, which checks the value and
// stores it; what nobody asked for is unknown.
type table struct {
	file     string
	name     string // as it is printed: "drain", "gate.prometheus"; empty: the file
	place    *place
	values   map[string]any
	asked    []string
	problems *[]Problem
}

// report adds a problem with a key of this table, or with the table itself when key is empty.
func (t *table) report(key, format string, args ...any) {
	t.reportAt(t.place.key(key), key, format, args...)
}

func (t *table) reportAt(at *place, key, format string, args ...any) {
	*t.problems = append(*t.problems,
		Problem{File: t.file, Line: at.line(), Key: t.path(key), Message: fmt.Sprintf(format, args...)})
}

// path prints a key with the name of its table.
func (t *table) path(key string) string {
	if key != "" && !bareKey.MatchString(key) {
		key = quote(key)
	}
	return strings.Trim(t.name+"."+key, ".")
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// value returns what the file says for a key.
func (t *table) value(key string) (any, bool) {
	if !slices.Contains(t.asked, key) {
		t.asked = append(t.asked, key)
	}
	v, ok := t.values[key]
	return v, ok
}

// has tells whether the file gives a key.
func (t *table) has(key string) bool {
	if t == nil {
		return false
	}
	_, ok := t.values[key]
	return ok
}

// isTable tells whether a key holds a table, not an array of them or anything else.
func (t *table) isTable(key string) bool {
	_, ok := t.values[key].(map[string]any)
	return ok
}

// need reports the given keys when they are missing.
func (t *table) need(keys ...string) {
	for _, key := range keys {
		if !t.has(key) {
			t.report(key, "missing")
		}
	}
}

// close reports the keys that nobody asked for.
func (t *table) close() {
	for key := range t.values {
		if slices.Contains(t.asked, key) {
			continue
		}
		what := "unknown key"
		if t.name == "" {
			what = "unknown table"
			if k := kind(t.values[key]); k != "a table" && k != "an array of tables" {
				what = "unknown key outside of any table"
			}
		}
		t.report(key, "%s: %s", what, didYouMean(key, t.asked))
	}
}

// check tells what is wrong with a string.
type check func(string) error

// text reads a string. An empty one is not checked: someText refuses it.
func (t *table) text(key string, into *string, checks ...check) {
	v, ok := t.value(key)
	if !ok {
		return
	}
	s, ok := v.(string)
	if !ok {
		t.report(key, "is %s: write a string in quotes", kind(v))
		return
	}
	if s != "" {
		for _, check := range checks {
			if err := check(s); err != nil {
				t.report(key, "%s", err)
				return
			}
		}
	}
	*into = s
}

// someText reads a string that may not be empty.
func (t *table) someText(key string, into *string, checks ...check) {
	if v, ok := t.value(key); ok && v == "" {
		t.report(key, "is empty")
		return
	}
	t.text(key, into, checks...)
}

// choice reads a string that is one of the given ones.
func (t *table) choice(key string, into *string, known ...string) {
	v, ok := t.value(key)
	if !ok {
		return
	}
	s, ok := v.(string)
	switch {
	case !ok:
		t.report(key, "is %s: write %s", kind(v), choices(known))
	case !slices.Contains(known, s):
		t.report(key, "%s is not known: write %s", quote(s), choices(known))
	default:
		*into = s
	}
}

func (t *table) boolean(key string, into *bool) {
	v, ok := t.value(key)
	if !ok {
		return
	}
	b, ok := v.(bool)
	if !ok {
		t.report(key, "is %s: write true or false, without quotes", kind(v))
		return
	}
	*into = b
}

// duration reads a duration that is not under least, or the word that leaves into as it is.
func (t *table) duration(key string, into *time.Duration, least time.Duration, word ...string) {
	v, ok := t.value(key)
	if !ok {
		return
	}
	form := strings.Join(append([]string{`write a number and a unit (s, m or h), such as "30s", "20m" or "24h"`},
		quoted(word)...), ", or ")
	s, ok := v.(string)
	if n, isInteger := v.(int64); isInteger {
		s, ok = strconv.FormatInt(n, 10), true
	}
	d, err := time.ParseDuration(s)
	switch {
	case !ok:
		t.report(key, "is %s: %s", kind(v), form)
	case slices.Contains(word, s):
	case bareNumber.MatchString(s):
		t.report(key, `%s has no unit: write "%ss" for seconds or "%sm" for minutes`, s, s, s)
	case err != nil:
		t.report(key, "%s is not a duration: %s", quote(s), form)
	case d < least:
		t.report(key, "%s is too short: the least is %q", quote(s), short(least))
	default:
		*into = d
	}
}

// count reads a number that is not negative, or the word that leaves into as it is.
func (t *table) count(key string, into **int, word string) {
	const most = 10_000
	switch v, ok := t.value(key); n := v.(type) {
	case int64:
		if n < 0 || n > most {
			t.report(key, "%d is not between 0 and %d", n, most)
			return
		}
		count := int(n)
		*into = &count
	default:
		if ok && v != word {
			t.report(key, "is %s: write a number without quotes, or %q", kind(v), word)
		}
	}
}

// bareNumber matches "0" too, which Go takes for a duration.
var bareNumber = regexp.MustCompile(`^-?[0-9]{1,19}$`)

// short prints a duration without the zero units that time.Duration adds: "20m", not "20m0s".
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// texts reads a list of strings, none of them empty.
func (t *table) texts(key string, into *[]string, checks ...check) {
	v, ok := t.value(key)
	if !ok {
		return
	}
	list, ok := v.([]any)
	if !ok {
		t.report(key, `is %s: write a list of strings, such as ["a", "b"]`, kind(v))
		return
	}
	var all []string
	for i, v := range list {
		at := t.place.key(key).item(i)
		s, ok := v.(string)
		switch {
		case !ok:
			t.reportAt(at, key, "element %d is %s: write a string in quotes", i+1, kind(v))
		case s == "":
			t.reportAt(at, key, "element %d is empty", i+1)
		default:
			for _, check := range checks {
				if err := check(s); err != nil {
					t.reportAt(at, key, "%s", err)
				}
			}
			all = append(all, s)
		}
	}
	*into = all
}

// one reads a sub-table, [key]. A missing one is read as an empty one.
func (t *table) one(key string) *table {
	child := &table{file: t.file, name: t.path(key), place: t.place.key(key), problems: t.problems}
	v, ok := t.value(key)
	if !ok {
		return child
	}
	if child.values, ok = v.(map[string]any); !ok {
		t.report(key, "is %s: write it as a table, [%s]", kind(v), child.name)
	}
	return child
}

// maxTables is the most elements of an array of tables. It bounds the work that windows or sources can make.
const maxTables = 32

// many reads an array of tables, [[key]].
func (t *table) many(key string) []*table {
	v, ok := t.value(key)
	if !ok {
		return nil
	}
	name := t.path(key)
	var elements []any
	switch v := v.(type) {
	case []any: // [{...}, {...}]
		elements = v
	case []map[string]any:
		for _, element := range v {
			elements = append(elements, element)
		}
	default:
		t.report(key, "is %s: write it in double brackets, [[%s]]", kind(v), name)
		return nil
	}
	var all []*table
	for i, element := range elements {
		at := t.place.key(key).item(i)
		if i == maxTables {
			t.reportAt(at, key, "is one too many: the most is %d", maxTables)
			break
		}
		values, ok := element.(map[string]any)
		if !ok {
			t.reportAt(at, key, "element %d is %s: write it as a table, [[%s]]", i+1, kind(element), name)
			continue
		}
		all = append(all, &table{file: t.file, name: name, place: at, values: values, problems: t.problems})
	}
	return all
}

// kind names the type of a TOML value.
func kind(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date or time"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "an array of tables"
	default:
		return "a list"
	}
}

// sound tells whether nothing is wrong with a key so far. The methods that only ask are safe on nil.
func (t *table) sound(key string) bool {
	return t == nil || !slices.ContainsFunc(*t.problems, func(p Problem) bool {
		return p.File == t.file && p.Key == t.path(key)
	})
}
