// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kured-agent/kured-agent/"

// mayImport is the whole of the import rule: what a package may use of this module. depguard says the same by and
// large; this test needs no linter. text, files and api are tools that know nothing of the agent.
var mayImport = map[string][]string{
	"text": nil, "files": nil, "api": nil,

	"plan": nil, "window": {"plan"}, "agent": {"plan"}, "config": {"plan", "window", "text"},

	"kube": {"plan", "text", "files", "api"}, "node": {"plan", "text", "api"}, "slot": {"plan", "text", "api"},
	"drain": {"plan", "text", "api"}, "gate": {"plan", "text", "files", "api"},

	"fleet": {"text", "api"}, // of kubectl-kured

	"bus": nil, "host": {"plan", "files"}, "beside": {"text", "files"}, "signal": {"plan", "bus", "text", "files"},
	"logind": {"plan", "bus", "text"}, "units": {"plan", "bus"}, "report": {"plan", "bus", "text", "files"},
}

func TestPackagesImportOnlyWhatTheRuleAllows(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("../../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		rel, _ := filepath.Rel("../../internal", filepath.Dir(path))
		pkg, test, _ := strings.Cut(filepath.ToSlash(rel), "/")
		if strings.HasSuffix(test, "test") {
			return nil // helpers of tests
		}
		allowed, known := mayImport[pkg]
		if !known {
			t.Errorf("package internal/%s is not in the import rule", pkg)
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if imported == "os/exec" {
				t.Errorf("%s imports os/exec: the agent runs no programs", path)
			}
			own, ok := strings.CutPrefix(imported, module+"internal/")
			if ok && own != pkg && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s", path, own)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The typed clientset links every API group there is: 10 MB of resident memory for nothing.
func TestTheBinaryDoesNotLinkTheTypedClientset(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for dep := range strings.Lines(string(out)) {
		dep = strings.TrimSpace(dep)
		if strings.HasPrefix(dep, "k8s.io/client-go/kubernetes") || strings.HasPrefix(dep, "k8s.io/client-go/informers") {
			t.Errorf("the agent links %s", dep)
		}
	}
}
