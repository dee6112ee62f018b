// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const examplePath = "../../config.example.toml"

func example(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// uncomment removes the mark of defaults, "#", and on request that of examples, "#~ ". "# " is prose.
func uncomment(text string, examples bool) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if after, ok := strings.CutPrefix(line, "#~ "); ok {
			if examples {
				line = after
			}
		} else if after, ok := strings.CutPrefix(line, "#"); ok && strings.TrimSpace(after) != "" && after[0] != ' ' {
			line = after
		}
		b.WriteString(line)
	}
	return b.String()
}

func TestTheExampleAsShippedIsTheDefaults(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(Default(), load(t, "config.toml", example(t))); diff != "" {
		t.Error(diff)
	}
}

func TestTheExampleUncommentedIsTheDefaults(t *testing.T) {
	t.Parallel()
	text := uncomment(example(t), false)
	if text == example(t) {
		t.Fatal("nothing was uncommented")
	}
	if diff := cmp.Diff(Default(), load(t, "config.toml", text), equalEmpty); diff != "" {
		t.Error(diff)
	}
}

// equalEmpty takes an empty list for a missing one.
var equalEmpty = cmp.Transformer("nil", func(list []string) []string { return append([]string{}, list...) })

func TestTheExampleStanzasAreValid(t *testing.T) {
	t.Parallel()
	c := load(t, "config.toml", uncomment(example(t), true))
	var types []string
	for _, s := range c.Sources {
		types = append(types, s.Type)
	}
	slices.Sort(types)
	if !slices.Equal(types, stub.SourceTypes()) {
		t.Errorf("sources in config.example.toml: %q, want one of each type: %q; add a \"#~ [[source]]\" stanza with keys "+
			"for what is missing", types, stub.SourceTypes())
	}
	if len(c.Windows) == 0 || len(c.Gate.Prometheus) == 0 || len(c.Gate.Pods) == 0 {
		t.Errorf("a stanza is missing: %+v", c)
	}
}

// TestTheExampleHasEveryKey lets an unknown key in each table of the example draw out the keys that are known there.
func TestTheExampleHasEveryKey(t *testing.T) {
	t.Parallel()
	const stranger = "qqqqqqqqqqqqqqqq"
	text := uncomment(example(t), true)
	given := map[string]bool{} // "table.key"
	name := ""
	for line := range strings.Lines(text) {
		if key, _, ok := strings.Cut(line, " = "); ok && !strings.HasPrefix(line, "#") {
			given[name+"."+key] = true
		} else if strings.HasPrefix(line, "[") {
			name = strings.Trim(line, "[]\n")
		}
	}
	text = regexp.MustCompile(`(?m)^\[.*\]$`).ReplaceAllString(text, "$0\n"+stranger+" = 1")

	_, err := Load(write(t, "config.toml", text), stub)
	all, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatal(err)
	}
	tables := map[string]bool{}
	for _, p := range all.Problems {
		name := strings.TrimSuffix(p.Key, "."+stranger)
		tables[name] = true
		for _, quoted := range regexp.MustCompile(`"[a-z_]+"`).FindAllString(p.Message, -1) {
			if key := name + "." + strings.Trim(quoted, `"`); !given[key] && key != "gate.prometheus" && key != "gate.pods" {
				t.Errorf("no key %s in the example", key)
			}
		}
	}
	for _, section := range sections {
		if !tables[section.name] && section.name != "gate" {
			t.Errorf("no table %s in the example", section.name)
		}
	}
}

func TestEachDefaultInTheExampleHasASentenceAboveIt(t *testing.T) {
	t.Parallel()
	previous := ""
	for line := range strings.Lines(example(t)) {
		if len(line) > 121 {
			t.Errorf("longer than 120 columns: %q", line)
		}
		if key, _, ok := strings.Cut(line, " ="); ok && strings.HasPrefix(key, "#") && !strings.HasPrefix(key, "#~") &&
			!strings.Contains(strings.TrimSpace(key), " ") && !strings.HasPrefix(previous, "# ") {
			t.Errorf("nothing is said about %q", line)
		}
		previous = line
	}
}
