// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"fmt"
	"path"
	"regexp"

	"github.com/godbus/dbus/v5"
)

var (
	busNameForm   = regexp.MustCompile(`^[A-Za-z_-][A-Za-z0-9_-]*(\.[A-Za-z_-][A-Za-z0-9_-]*)+$`)
	interfaceForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$`)
	memberForm    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// maxBusName is the longest name of any kind on a bus.
const maxBusName = 255

func isText(ok func(string) bool, want string) func(any) string {
	return func(v any) string {
		s, isString := v.(string)
		switch {
		case !isString:
			return fmt.Sprintf("is %s, want a string: %s", tomlType(v), want)
		case !ok(s):
			return fmt.Sprintf("%q is not %s", s, want)
		}
		return ""
	}
}

func named(form *regexp.Regexp, want string) func(any) string {
	return isText(func(s string) bool { return len(s) <= maxBusName && form.MatchString(s) }, want)
}

var (
	isFilePath = isText(func(s string) bool { return path.IsAbs(s) && path.Clean(s) == s && s != "/" },
		"an absolute path like /run/reboot-required")
	isBusName    = named(busNameForm, "a bus name like com.example.Updater")
	isInterface  = named(interfaceForm, "an interface like com.example.Updater")
	isMember     = named(memberForm, "a single name like StatusChanged")
	isObjectPath = isText(func(s string) bool { return dbus.ObjectPath(s).IsValid() },
		"an object path like /com/example/Updater")
)

// maxArgument is the last argument index that a D-Bus match can name.
const maxArgument = 63

func isArgument(v any) string {
	n, ok := v.(int64)
	if !ok {
		return fmt.Sprintf("is %s, want the index of an argument, 0 for the first", tomlType(v))
	}
	if n < 0 || n > maxArgument {
		return fmt.Sprintf("%d is not between 0 and %d", n, maxArgument)
	}
	return ""
}

func isValue(v any) string {
	switch v.(type) {
	case string, int64, bool:
		return ""
	}
	return fmt.Sprintf("is %s, want a string, an integer or a boolean", tomlType(v))
}

func tomlType(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64, int:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case []any, []map[string]any:
		return "an array"
	case map[string]any:
		return "a table"
	}
	return fmt.Sprintf("a %T", v)
}

// suggest returns the nearest of the known words as an addition to a message.
func suggest(word string, known []string) string {
	best, distance := "", 1+max(2, len(word)/2)
	for _, k := range known {
		if d := editDistance(word, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// compare says whether a value from the bus equals a configured one. ok is false when they are of different types, so
// that neither answer would be true.
func compare(want, got any) (equal, ok bool) {
	if v, isVariant := got.(dbus.Variant); isVariant {
		got = v.Value()
	}
	switch want := want.(type) {
	case string:
		switch got := got.(type) {
		case string:
			return got == want, true
		case dbus.ObjectPath:
			return string(got) == want, true
		}
	case bool:
		got, ok := got.(bool)
		return ok && got == want, ok
	case int64:
		switch got := got.(type) {
		case byte:
			return int64(got) == want, true
		case int16:
			return int64(got) == want, true
		case uint16:
			return int64(got) == want, true
		case int32:
			return int64(got) == want, true
		case uint32:
			return int64(got) == want, true
		case int64:
			return got == want, true
		case uint64:
			return want >= 0 && got == uint64(want), true
		}
	}
	return false, false
}
