// SPDX-License-Identifier: Apache-2.0

package overstep

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// grant is what the manifests allow. verbs and resources are as RBAC names them.
type grant struct {
	verbs, resource, where, why string
}

var grants = []grant{
	{"get, list, patch", "nodes", "every Node; the policy leaves its own to write", "taint, cordon, and how many wait"},
	{"list", "pods", everywhere, "which pods the drain has to move"},
	{"create", "pods/eviction", everywhere, "the drain"},
	{"get, list, create, delete", "leases.coordination.k8s.io", ownNamespace,
		"slots; the policy leaves its own to write"},
	{"get", "configmaps kured-agent-pools", ownNamespace,
		"how many of a pool may be away, and whether the fleet is paused"},
	{"create", "serviceaccounts/token agent", ownNamespace,
		"renewing its own token; the policy says for whom and how long"},
	{"create, patch", "events", inDefault, "telling what went wrong: events about Nodes are there"},
	{"create, patch", "events.events.k8s.io", inDefault, "the same, by its newer name"},
}

const (
	everywhere   = "every namespace"
	ownNamespace = "namespace `kured-agent`"
	inDefault    = "namespace `default`"
)

var update = flag.Bool("update", false, "rewrite docs/security.md")

const document = "../../docs/security.md"

// docs/security.md holds the two tables between their marks. Run `go test ./test/overstep -update` after a change.
func TestTheSecurityDocumentIsRenderedFromWhatIsTried(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, part := range []struct{ name, content string }{{"grants", renderGrants()}, {"oversteps", renderOversteps()}} {
		begin, end := "<!-- rendered: "+part.name+" -->\n", "<!-- end of "+part.name+" -->"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no place for the table: %q, %q", document, begin, end)
		}
		want = before + begin + "\n" + part.content + "\n" + end + after
	}
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatalf("%s differs from what is tried; run: go test ./test/overstep -update", document)
	}
	if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func renderGrants() string {
	var out strings.Builder
	out.WriteString("| may | of | where | for |\n|---|---|---|---|\n")
	for _, g := range grants {
		fmt.Fprintf(&out, "| %s | `%s` | %s | %s |\n", g.verbs, g.resource, g.where, g.why)
	}
	return out.String()
}

func renderOversteps() string {
	var out strings.Builder
	out.WriteString("| attempt | request | answer |\n|---|---|---|\n")
	for _, s := range sections {
		fmt.Fprintf(&out, "| **%s** | | |\n", s.title)
		for _, a := range s.attempts {
			answer := "RBAC: " + a.noRight()
			if a.because != "" {
				answer = a.because
			}
			if a.certificate != "" {
				answer += ". With a certificate: " + a.certificate
			}
			fmt.Fprintf(&out, "| %s | %s %s | %s |\n", a.what, a.verb, a.resource, answer)
		}
	}
	return out.String()
}

func TestWhatIsTriedFitsIntoATable(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sections {
		for _, a := range s.attempts {
			for _, cell := range []string{a.what, a.because, a.certificate} {
				if strings.ContainsAny(cell, "|\n") || cell != strings.TrimSpace(cell) || strings.HasSuffix(cell, ".") {
					t.Errorf("%q is not one cell of a table", cell)
				}
			}
			if seen[a.what] {
				t.Errorf("%q twice", a.what)
			}
			seen[a.what] = true
		}
	}
}
