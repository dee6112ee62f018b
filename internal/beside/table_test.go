// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/sources.md")

const sourcesFile = "../../docs/sources.md"

// The document holds the table between its two marks. Run `go test ./internal/beside -update` after a change of it.
func TestTheDocumentNamesEveryProgram(t *testing.T) {
	const begin, end = "<!-- rendered: beside -->\n", "<!-- end -->"
	got, err := os.ReadFile(sourcesFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(got), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", sourcesFile)
	}
	var table strings.Builder
	table.WriteString("\n| program | recognised by | turned off by |\n|---|---|---|\n")
	for _, row := range Table() {
		fmt.Fprintf(&table, "| %s | %s | `%s` |\n", row.Program, row.Recognised, row.Off)
	}
	want := before + begin + table.String() + "\n" + end + after
	switch {
	case *update:
		if err := os.WriteFile(sourcesFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case want != string(got):
		t.Errorf("%s differs from the table; run: go test ./internal/beside -update", sourcesFile)
	}
}
