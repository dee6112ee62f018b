// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/sources.md")

const sourcesFile = "../../docs/sources.md"

// docs/sources.md holds the registry between its two marks. Run `go test ./internal/signal -update` after a change.
func TestTheSourcesDocumentIsRenderedFromTheRegistry(t *testing.T) {
	const begin, end = "<!-- rendered: sources -->\n", "<!-- end -->"
	got, err := os.ReadFile(sourcesFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(got), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table: %q, %q", sourcesFile, begin, end)
	}
	want := []byte(before + begin + renderSources() + end + after)
	if *update {
		if err := os.WriteFile(sourcesFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from the registry; run: go test ./internal/signal -update", sourcesFile)
	}
}

func renderSources() string {
	var out strings.Builder
	out.WriteString("\n| source | by itself | what is watched | required | cleared | switch off beside it |\n" +
		"|---|---|---|---|---|---|\n")
	for _, typ := range Types() {
		k := kinds[typ]
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s | %s |\n", typ, byItself(k),
			k.about.Watched, k.about.Required, k.about.Cleared, cmp.Or(k.about.Beside, "nothing"))
	}
	return out.String() + "\n"
}

func byItself(k kind) string {
	switch {
	case len(k.presets) == 0:
		return "no"
	case k.installed == nil:
		return "yes"
	}
	return "where installed"
}

func TestWhatTheRegistryTellsFitsIntoATable(t *testing.T) {
	for _, typ := range Types() {
		about := kinds[typ].about
		for _, text := range []string{about.Watched, about.Required, about.Cleared, about.Beside} {
			if strings.ContainsAny(text, "|\n") || text != strings.TrimSpace(text) || strings.HasSuffix(text, ".") {
				t.Errorf("%s: %q is not one cell of a table", typ, text)
			}
		}
	}
	if !slices.IsSorted(Types()) {
		t.Error("the table is not in order")
	}
}
