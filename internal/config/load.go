// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/BurntSushi/toml"

	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	maxSize = 1 << 20 // bytes of a file
	maxText = 256     // bytes of the parser's words that are printed
)

// Options are what this package cannot know by itself. Without a hook its check is left out.
type Options struct {
	// SourceTypes names the types of sources that exist.
	SourceTypes func() []string
	// CheckSource says what is wrong with the stanza of a source; options are all its keys but type.
	CheckSource func(typ string, options map[string]any) []SourceProblem
}

// SourceProblem is one thing that is wrong with the stanza of a source.
type SourceProblem struct {
	Key     string // empty: the stanza as a whole
	Message string
}

// Load reads the file at path and the drop-ins beside it. Any problem makes it an *Error with all of them.
func Load(path string, opts Options) (*Config, error) {
	files, err := Files(path)
	var problems []Problem
	if err != nil {
		problems = append(problems, Problem{File: dropInDir(path), Message: err.Error()})
	}
	c := Default()
	given := map[string]*table{}
	for _, file := range files {
		root := readFile(file, &problems)
		if root == nil {
			continue
		}
		for _, section := range sections {
			if _, ok := root.value(section.name); ok {
				section.read(root, c, opts)
				given[section.name] = root
			}
		}
		root.close()
	}
	checkAcross(c, given)
	if len(problems) > 0 {
		sortProblems(problems, files)
		return nil, &Error{Problems: problems}
	}
	return c, nil
}

// Files returns the files that Load reads, in order: path, then config.d/*.toml beside it in name order. Hidden files
// are left out: editors keep their own there. An error concerns the drop-in directory; path is returned all the same.
func Files(path string) ([]string, error) {
	files := []string{path}
	dir := dropInDir(path)
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return files, nil
	case err != nil:
		return files, cause(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return files, cause(err)
	}
	if err := checkOwner(info, os.Geteuid()); err != nil {
		return files, err
	}
	for _, entry := range entries { // in name order
		if name := entry.Name(); strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".") {
			files = append(files, filepath.Join(dir, name))
		}
	}
	return files, nil
}

func dropInDir(path string) string { return filepath.Join(filepath.Dir(path), "config.d") }

// readFile parses one file into its root table, or reports why it cannot.
func readFile(file string, problems *[]Problem) *table {
	refuse := func(line int, key, message string) *table {
		*problems = append(*problems, Problem{File: file, Line: line, Key: key, Message: message})
		return nil
	}
	content, err := readText(file)
	if err != nil {
		return refuse(0, "", err.Error())
	}
	places, tooDeep := locate(content)
	if tooDeep > 0 {
		return refuse(tooDeep, "", fmt.Sprintf("is nested more than %d deep", maxDepth))
	}
	var values map[string]any
	if _, err := toml.Decode(content, &values); err != nil {
		syntax, ok := errors.AsType[toml.ParseError](err)
		if !ok {
			return refuse(0, "", err.Error())
		}
		return refuse(syntax.Position.Line, text.Cut(syntax.LastKey, maxText),
			"is not TOML: "+text.Cut(syntax.Message, maxText))
	}
	return &table{file: file, place: places, values: values, problems: problems}
}

// readText reads a file that nobody but root and this process's user can have written: who writes it decides when
// this host reboots.
func readText(file string) (string, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo must not hold up the start
	if err != nil {
		return "", cause(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", cause(err)
	case info.IsDir():
		return "", errors.New("is a directory")
	case !info.Mode().IsRegular():
		return "", errors.New("is not a regular file")
	}
	if err := checkOwner(info, os.Geteuid()); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	switch {
	case err != nil:
		return "", cause(err)
	case len(text) > maxSize:
		return "", fmt.Errorf("is larger than %d KiB", maxSize>>10)
	}
	return string(text), nil
}

// checkOwner refuses what others than root and the user euid can write.
func checkOwner(info fs.FileInfo, euid int) error {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && !slices.Contains([]int{0, euid}, int(stat.Uid)) {
		return fmt.Errorf("belongs to user %d: run chown root", stat.Uid)
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("can be written by others than its owner (mode %04o): run chmod go-w", mode)
	}
	return nil
}

// cause strips the operation and the path from an error of the file system: a Problem names its file already.
func cause(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("does not exist; an empty file means all defaults")
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("reading it: %w", path.Err)
	}
	return err
}
