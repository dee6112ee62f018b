// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program builds one of ours. The go command does nothing when it has it already.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubectl-kured")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", path,
		"../../cmd/kubectl-kured")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func written(t *testing.T, path string) (bom, texts []byte) {
	t.Helper()
	if err := run("1.2.3", path); err != nil {
		t.Fatal(err)
	}
	bom, err := os.ReadFile(path + ".cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	texts, err = os.ReadFile(path + ".licenses")
	if err != nil {
		t.Fatal(err)
	}
	return bom, texts
}

func TestEveryModuleOfTheProgramIsOnTheBillWithItsLicence(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	path := program(t)
	bom, texts := written(t, path)
	again, textsAgain := written(t, path)
	if !bytes.Equal(bom, again) || !bytes.Equal(texts, textsAgain) {
		t.Error("a second run gave other bytes")
	}
	var d document
	if err := json.Unmarshal(bom, &d); err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), "go", "version", "-m", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := 0
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if fields[0] != "dep" {
			continue
		}
		modules++
		is := func(c component) bool { return c.Name == fields[1] && c.Version == fields[2] }
		at := slices.IndexFunc(d.Components, is)
		if at < 0 || d.Components[at].Licences[0].Expression == "" {
			t.Errorf("%v is not on the bill, or has no licence", fields[1:3])
		}
		if !strings.Contains(string(texts), "\n"+fields[1]+"/") {
			t.Errorf("no licence text of %s", fields[1])
		}
	}
	if modules < 10 || len(d.Components) != modules+1 { // and the standard library
		t.Errorf("%d modules, %d components", modules, len(d.Components))
	}
	if d.Metadata.Timestamp != "2023-11-14T22:13:20Z" || d.Metadata.Component.Version != "1.2.3" {
		t.Errorf("%+v", d.Metadata)
	}
}

func TestALicenceIsToldByItsWords(t *testing.T) {
	const bsd = "Redistribution and use in source and\nbinary forms, with or without modification"
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004":                                          "Apache-2.0",
		"Permission is hereby granted, free of charge, to any person obtaining a copy of":       "MIT",
		"Permission to use, copy, modify, and/or distribute this software for any purpose with": "ISC",
		bsd + " names of its contributors may be used to endorse":                               "BSD-3-Clause",
		bsd: "BSD-2-Clause",
		"Everybody may do with it what they like": "",
	} {
		if got := strings.Join(identify(text), " "); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestAnUnknownLicenceIsNotPassedOver(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "LICENSE"), []byte("Ask me"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := texts(source{root: dir}); err == nil || !strings.Contains(err.Error(), "none of the licences") {
		t.Errorf("got %v", err)
	}
}
