// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// part is a module in the program, or the standard library. The first part is the program's own module.
type part struct {
	name, version string
	files         []file // licences and notices
}

// file is a text that has to go with the part.
type file struct {
	name, text string // relative to the part
	ids        []string
}

// parts are the modules that are linked in, in the order of their names, with the licences of the packages in use.
func parts(info *buildinfo.BuildInfo, version string) ([]part, error) {
	folders, err := packages(info)
	if err != nil {
		return nil, err
	}
	all := []part{{name: info.Main.Path, version: version}}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		all = append(all, part{name: module.Path, version: module.Version})
	}
	slices.SortFunc(all[1:], func(a, b part) int { return cmp.Compare(a.name, b.name) })
	all = append(all, part{name: standard, version: strings.TrimPrefix(info.GoVersion, "go")})
	for i := range all {
		if all[i].files, err = texts(folders[all[i].name]); err != nil {
			return nil, fmt.Errorf("reading the licences of %s: %w", all[i].name, err)
		}
		if !slices.ContainsFunc(all[i].files, func(f file) bool { return len(f.ids) > 0 }) {
			return nil, fmt.Errorf("reading the licences of %s: none found", all[i].name)
		}
	}
	return all, nil
}

const standard = "std"

// source is where the packages of a part are.
type source struct {
	root     string
	packages []string
}

// packages asks the go command which folders the program is compiled from, by module.
func packages(info *buildinfo.BuildInfo) (map[string]source, error) {
	const format = "{{with .Module}}{{.Path}}\t{{.Dir}}{{else}}std\t{{.Root}}{{end}}\t{{.Dir}}"
	list := exec.Command("go", "list", "-deps", "-f", format, info.Path)
	list.Env = os.Environ()
	for _, setting := range info.Settings {
		if setting.Key == "GOOS" || setting.Key == "GOARCH" || setting.Key == "CGO_ENABLED" {
			list.Env = append(list.Env, setting.Key+"="+setting.Value)
		}
	}
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages of %s: %w", info.Path, err)
	}
	all := map[string]source{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 3 {
			return nil, fmt.Errorf("listing the packages of %s: line %q", info.Path, line)
		}
		s := all[fields[0]]
		s.root = fields[1]
		s.packages = append(s.packages, fields[2])
		all[fields[0]] = s
	}
	return all, nil
}

var licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([._-].*)?$`)

// texts reads the licences in the root of a part and in the folders from there to each package that is used.
func texts(s source) ([]file, error) {
	if s.root == "" {
		return nil, nil
	}
	folders := map[string]bool{s.root: true}
	for _, folder := range s.packages {
		for ; strings.HasPrefix(folder, s.root) && !folders[folder]; folder = filepath.Dir(folder) {
			folders[folder] = true
		}
	}
	var all []file
	for folder := range folders {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if !entry.Type().IsRegular() || !licenceName.MatchString(entry.Name()) || filepath.Ext(entry.Name()) == ".go" {
				continue
			}
			f, err := read(s.root, filepath.Join(folder, entry.Name()))
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

func read(root, path string) (file, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return file{}, err
	}
	name, err := filepath.Rel(root, path)
	if err != nil {
		return file{}, err
	}
	plain := strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))
	f := file{name: name, text: plain, ids: identify(plain)}
	if len(f.ids) == 0 && !addition.MatchString(filepath.Base(path)) {
		return file{}, fmt.Errorf("%s is none of the licences that packaging/bill knows: look at it, and teach it", path)
	}
	return f, nil
}

// addition is a file that comes with a licence and is none.
var addition = regexp.MustCompile(`(?i)^(notice|patents)`)

const bsd = "Redistribution and use in source and binary forms"

// known licences are told by words that no other has.
var known = []struct {
	id    string
	words []string
	not   string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}, ""},
	{"MIT", []string{"Permission is hereby granted, free of charge, to any person obtaining a copy"}, ""},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute this software for any purpose"}, ""},
	{"BSD-3-Clause", []string{bsd, "contributors may be used to endorse"}, ""},
	{"BSD-2-Clause", []string{bsd}, "may be used to endorse"},
}

// identify returns the SPDX names of the licences whose words are in the text.
func identify(text string) []string {
	text = strings.Join(strings.Fields(text), " ")
	var ids []string
	for _, k := range known {
		missing := func(words string) bool { return !strings.Contains(text, words) }
		if !slices.ContainsFunc(k.words, missing) && (k.not == "" || missing(k.not)) {
			ids = append(ids, k.id)
		}
	}
	return ids
}

// expression joins the licences of a part, all of which hold.
func (p part) expression() string {
	var ids []string
	for _, f := range p.files {
		ids = append(ids, f.ids...)
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " AND ")
}
