// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/states.md and the scenario files")

const statesFile = "../../docs/states.md"

// docs/states.md is the switch in decide, as a table. Run `go test ./internal/plan -update` after a change of it.
func TestTheStatesDocumentIsRenderedFromTheSwitch(t *testing.T) {
	t.Parallel()
	want := renderStates(t)
	got, err := os.ReadFile(statesFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		differs(t, statesFile, string(got), string(want))
	}
}

func renderStates(t *testing.T) []byte {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "plan.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	out.WriteString("# States\n\nRendered from `internal/plan/plan.go`; do not edit. The first row that matches " +
		"decides; every row has one action, and after it everything is observed again.\n\n" +
		"| # | what | observed | phase | action |\n|---|---|---|---|---|\n")
	row := 0
	ast.Inspect(file, func(n ast.Node) bool {
		fn, ok := n.(*ast.FuncDecl)
		if !ok || fn.Name.Name != "decide" {
			return true
		}
		for _, stmt := range fn.Body.List[0].(*ast.SwitchStmt).Body.List {
			row++
			writeRow(t, &out, fset, file, row, stmt.(*ast.CaseClause))
		}
		return false
	})
	out.WriteString("\nThe conditions are the fields of `facts` in the same file; `Policy` and `Observed` say what they " +
		"are made of.\n")
	return out.Bytes()
}

func writeRow(t *testing.T, out *bytes.Buffer, fset *token.FileSet, file *ast.File, row int, clause *ast.CaseClause) {
	t.Helper()
	cond := "otherwise"
	if len(clause.List) == 1 {
		var b bytes.Buffer
		if err := printer.Fprint(&b, fset, clause.List[0]); err != nil {
			t.Fatal(err)
		}
		cond = "`" + strings.ReplaceAll(strings.ReplaceAll(b.String(), "f.", ""), "||", "or") + "`"
	}
	ret := clause.Body[0].(*ast.ReturnStmt)
	phase, action := ret.Results[0].(*ast.Ident).Name, ret.Results[1].(*ast.Ident).Name
	what := commentAbove(fset, file, clause)
	if what == "" {
		t.Errorf("row %d (%s, %s) has no comment", row, phase, action)
	}
	fmt.Fprintf(out, "| %d | %s | %s | %s | %s |\n", row, what, cond, phaseByIdent(phase), actionByIdent(t, action))
}

func commentAbove(fset *token.FileSet, file *ast.File, clause *ast.CaseClause) string {
	line := fset.Position(clause.Pos()).Line
	for _, c := range file.Comments {
		if fset.Position(c.End()).Line == line-1 {
			return strings.ReplaceAll(strings.TrimSpace(c.Text()), "\n", " ")
		}
	}
	return ""
}

func phaseByIdent(ident string) string {
	if ident == "Unknowing" {
		return Unknowing.String()
	}
	return ident
}

func actionByIdent(t *testing.T, ident string) string {
	t.Helper()
	a, ok := map[string]Action{
		"None": None, "Taint": Taint, "Acquire": Acquire, "Cordon": Cordon, "Evict": Evict, "DeletePods": DeletePods,
		"StartTarget": StartTarget, "Reboot": Reboot, "Return": Return, "Clean": Clean, "RollBack": RollBack,
		"Release": Release, "NoteFailure": NoteFailure, "Settle": Settle, "Forget": Forget, "Unask": Unask,
		"LetGo": LetGo,
	}[ident]
	if !ok {
		t.Fatalf("action %q is not in the table of this test", ident)
	}
	return a.String()
}
