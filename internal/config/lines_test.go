// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// places lists the places in a text, as "path: line".
func places(p *place, path string) []string {
	var all []string
	for key, child := range p.keys {
		at := strings.TrimPrefix(path+"."+key, ".")
		all = append(all, fmt.Sprintf("%s: %d", at, child.number))
		all = append(all, places(child, at)...)
	}
	for i, item := range p.items {
		at := fmt.Sprintf("%s[%d]", path, i)
		all = append(all, fmt.Sprintf("%s: %d", at, item.number))
		all = append(all, places(item, at)...)
	}
	slices.Sort(all)
	return all
}

func TestEveryKeyIsFoundOnItsLine(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		text string
		want []string
	}{
		{"nothing", "", nil},
		{"keys before any table", "a = 1\n\nb = 2", []string{"a: 1", "b: 3"}},
		{"a table", "[t]\nk = 1\n[u]\nk = 2\n", []string{"t: 1", "t.k: 2", "u: 3", "u.k: 4"}},
		{
			"elements of an array of tables", "[[s]]\nk = 1\n\n[[s]]\nk = 2\n",
			[]string{"s: 1", "s[0]: 1", "s[0].k: 2", "s[1]: 4", "s[1].k: 5"},
		}, {
			"a table below the newest element", "[[s]]\n[[s]]\n[s.sub]\nk = 1\n",
			[]string{"s: 1", "s[0]: 1", "s[1]: 2", "s[1].sub: 3", "s[1].sub.k: 4"},
		}, {
			"nested arrays of tables", "[[g.p]]\nk = 1\n[[g.p]]\n",
			[]string{"g: 1", "g.p: 1", "g.p[0]: 1", "g.p[0].k: 2", "g.p[1]: 3"},
		}, {
			"a table after its sub-table", "[a.b]\nk = 1\n[a]\nj = 2\n", []string{"a: 3", "a.b: 1", "a.b.k: 2", "a.j: 4"},
		}, {
			"dotted keys", "a.b . c = 1\n\"a\".'d' = 2\n", []string{"a: 1", "a.b: 1", "a.b.c: 1", "a.d: 2"},
		}, {
			"blanks everywhere", "  [ t ]  # c\n\t k\t=\t1 # d\r\n", []string{"t: 1", "t.k: 2"},
		}, {
			"keys in comments and strings", "# x = 1\na = 'y = 2'\nb = \"\"\"\nz = 3\n[t]\n\"\"\"\nc = '''\nw = 4\\'''\nd = 1\n",
			[]string{"a: 2", "b: 3", "c: 7", "d: 9"},
		}, {
			"quotes at the end of multi-line strings",
			"a = \"\"\"x\"\"\"\"\"\nb = '''\ny''''\nc = \"\"\"\"\"\"\nd = \"\"\"\\\"\"\"\"\ne = 1",
			[]string{"a: 1", "b: 2", "c: 4", "d: 5", "e: 6"},
		}, {
			"escaped quotes", `a = "x\"y" # z` + "\nb = \"\\\\\"\nc = 1", []string{"a: 1", "b: 2", "c: 3"},
		}, {
			"quoted keys", "\"a b\" = 1\n'c.d' = 2\n\"e\\u0066\" = 3\n", []string{"a b: 1", "c.d: 2", "ef: 3"},
		}, {
			"elements of a list", "a = [\n  1, # one\n  'x',\n\n  [2,\n 3],\n]\nb = 1\n",
			[]string{"a: 1", "a[0]: 2", "a[1]: 3", "a[2]: 5", "a[2][0]: 5", "a[2][1]: 6", "b: 8"},
		}, {
			"inline tables", "a = {b = 1, c.d = 2}\ne = [{f = 1},\n{f = 2}]\n",
			[]string{"a: 1", "a.b: 1", "a.c: 1", "a.c.d: 1", "e: 2", "e[0]: 2", "e[0].f: 2", "e[1]: 3", "e[1].f: 3"},
		}, {
			"dates and numbers", "a = 2026-08-26 10:00:00Z # x\nb = 1.5e3\nc = -inf\n", []string{"a: 1", "b: 2", "c: 3"},
		}, {
			"a byte order mark", "\xef\xbb\xbfa = 1\n", []string{"a: 1"},
		}, {
			"nothing after what it cannot read", "a = 1\n= 2\nb = 3\n", []string{"a: 1"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			slices.Sort(test.want)
			root, tooDeep := locate(test.text)
			if got := places(root, ""); !slices.Equal(got, test.want) || tooDeep != 0 {
				t.Errorf("got  %q, too deep at %d\nwant %q", got, tooDeep, test.want)
			}
		})
	}
}

func TestDeepNestingIsRefused(t *testing.T) {
	t.Parallel()
	const many = 200_000
	for name, text := range map[string]string{
		"arrays":        "\na = " + strings.Repeat("[", many),
		"inline tables": "\na = " + strings.Repeat("{a=", many),
		"dotted key":    "\na" + strings.Repeat(".a", many) + " = 1",
		"header":        "\n[a" + strings.Repeat(".a", many) + "]",
	} {
		if _, tooDeep := locate(text); tooDeep != 2 {
			t.Errorf("%s: too deep at %d", name, tooDeep)
		}
	}
}

func TestAPlaceThatDoesNotExistIsItsParent(t *testing.T) {
	t.Parallel()
	root, _ := locate("\n[t]\nlist = [1]\n")
	if line := root.key("t").key("missing").line(); line != 2 {
		t.Errorf("missing key: line %d", line)
	}
	if line := root.key("t").key("list").item(7).line(); line != 3 {
		t.Errorf("missing element: line %d", line)
	}
	if line := (*place)(nil).key("x").item(0).line(); line != 0 {
		t.Errorf("no text: line %d", line)
	}
}

// FuzzLocate shows that whatever the TOML parser reads has a place, on a line that bears its name.
func FuzzLocate(f *testing.F) {
	for _, text := range []string{
		"a = 1\n[t]\nk = 'v'\n[[s]]\nk = [1, {x = 2}]\n[[s]]\n[s.sub]\n\"q\\u0041\" = \"\"\"\nx = 1\"\"\"\"\n",
		"a.b.c = 1\n'd'.\"e\" = 2 # c\nf = [\n1,\n[2, 3],\n]\ng = {h = {i = 1}, j.k = 2}\n",
		"[a.b]\n[a]\nx = '''\n\n'''\ny = 2026-08-26 10:00:00Z\r\n",
		"[[a]]\n[[a.b]]\n[[a.b]]\nx=1\n[[a]]\n[a.c]\nx=\"\\\\\"\n",
		"a = [{b = 1,\n c = 2, # d\n},\n]\n",
		"\xef\xbb\xbfa=1", "a = \"\"\"\\\"\"\"\"\n", "a=[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		root, tooDeep := locate(text)
		if tooDeep != 0 {
			return
		}
		var values map[string]any
		if _, err := toml.Decode(text, &values); err == nil {
			lines := strings.Split(text, "\n")
			compare(t, lines, root, values)
		}
	})
}

func compare(t *testing.T, lines []string, p *place, v any) {
	t.Helper()
	if p.number < 1 || p.number > len(lines) {
		t.Fatalf("line %d of %d", p.number, len(lines))
	}
	var items []any
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			child := p.keys[key]
			if child == nil {
				t.Fatalf("no place for %q", key)
			}
			if line := lines[child.number-1]; !strings.Contains(line, key) && !strings.Contains(line, `\`) {
				t.Fatalf("%q is not on line %d: %q", key, child.number, line)
			}
			compare(t, lines, child, value)
		}
		return
	case []any:
		items = v
	case []map[string]any:
		for _, item := range v {
			items = append(items, item)
		}
	case int64:
		// A plain number ends on the line on which its key or list element begins.
		if line := lines[p.number-1]; !strings.ContainsAny(line, "0123456789abcdefABCDEF") {
			t.Fatalf("%s is not on line %d: %q", strconv.FormatInt(v, 10), p.number, line)
		}
		return
	default:
		return
	}
	// The parser lets some keys be defined again, so there may be more places than values.
	if len(p.items) < len(items) {
		t.Fatalf("%d elements at line %d, want %d", len(p.items), p.number, len(items))
	}
	for i, item := range items {
		compare(t, lines, p.items[i], item)
	}
}
