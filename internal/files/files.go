// SPDX-License-Identifier: Apache-2.0

// Package files reads files with a bound, tells who else may have written them, and replaces our own as a whole.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Read returns the content of a file of at most most bytes. A larger one is an error.
func Read(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, most)
}

func readAll(f *os.File, most int) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %q: %w", f.Name(), err)
	case len(content) > most:
		return nil, fmt.Errorf("reading %q: larger than %d bytes", f.Name(), most)
	}
	return content, nil
}

// ErrForeign says that others than root and the agent may have written a file, or read a secret one.
var ErrForeign = errors.New("not only the agent's")

// Permission bits that others must not have.
const (
	WrittenByOthers fs.FileMode = 0o022
	SeenByOthers    fs.FileMode = 0o077
)

// ReadOwn is Read for a file that the agent wrote in a directory of its own. What belongs to somebody else, or has one
// of the forbidden permission bits, is ErrForeign, and a link is an error.
func ReadOwn(path string, most int, forbidden fs.FileMode) ([]byte, error) {
	// A fifo must not hold up the start.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading %q: not a regular file", path)
	}
	dir := filepath.Dir(path)
	around, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	owners := Owners(dir)
	if why := Foreign(around, WrittenByOthers, owners); why != "" {
		return nil, fmt.Errorf("reading %q: %w: directory %q %s", path, ErrForeign, dir, why)
	}
	if why := Foreign(info, forbidden, owners); why != "" {
		return nil, fmt.Errorf("reading %q: %w: it %s", path, ErrForeign, why)
	}
	return readAll(f, most)
}

// Owners are the users who may write what the agent believes: root and the agent's own. A command that root types
// takes the owner of the agent's directory for that user.
func Owners(dir string) []int {
	owners := []int{0, os.Geteuid()}
	if info, err := os.Stat(dir); err == nil && os.Geteuid() == 0 {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			owners = append(owners, int(stat.Uid))
		}
	}
	return owners
}

// Foreign says, after the name of the file, why others may have written or read it, and what repairs that.
func Foreign(info fs.FileInfo, forbidden fs.FileMode, owners []int) string {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && !slices.Contains(owners, int(stat.Uid)) {
		return fmt.Sprintf("belongs to user %d: chown it to the user of the agent", stat.Uid)
	}
	if mode := info.Mode().Perm(); mode&forbidden != 0 {
		return fmt.Sprintf("is open to others (mode %04o): chmod %04o", mode, mode&^forbidden)
	}
	return ""
}

// Replace puts content in the place of a file, through a temporary one beside it: a reader finds the old or the new
// file, whole, and it belongs to the owner of the directory. A power cut may empty it: for files that no boot needs.
func Replace(path string, mode fs.FileMode, content []byte) error {
	if err := replace(path, mode, content, func(*os.File) error { return nil }); err != nil {
		return fmt.Errorf("writing %q: %w", path, cause(err))
	}
	return nil
}

// ReplaceDurably is Replace for what has to outlive a power cut: after it the old or the new file is there, whole.
func ReplaceDurably(path string, mode fs.FileMode, content []byte) error {
	err := replace(path, mode, content, (*os.File).Sync)
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("writing %q: %w", path, cause(err))
	}
	return nil
}

// cause is err without the random name of the temporary file: who tells a trouble once compares the texts.
func cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	if link, ok := errors.AsType[*os.LinkError](err); ok {
		return link.Err
	}
	return err
}

func replace(path string, mode fs.FileMode, content []byte, flush func(*os.File) error) error {
	waiting, err := stage(path, mode, content, GiveToOwner, flush)
	if err != nil {
		return err
	}
	if err = os.Rename(waiting, path); err != nil {
		_ = os.Remove(waiting)
	}
	return err
}

// stage writes a whole file beside path and returns its name.
func stage(
	path string, mode fs.FileMode, content []byte, give, flush func(*os.File) error,
) (name string, err error) {
	// Never through a link that somebody put there; a dot keeps collectors of whole directories from reading half of it.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return "", err
	}
	err = fill(f, mode, content, give, flush)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

func fill(f *os.File, mode fs.FileMode, content []byte, give, flush func(*os.File) error) error {
	if err := give(f); err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return flush(f)
}

// Staged is a whole file that waits beside the one that it is to replace, so that it can be tried before.
type Staged struct{ Name, path string }

// Stage writes content for root and the group gid; for itself when it does not run as root. It reached the disk.
func Stage(path string, mode fs.FileMode, gid int, content []byte) (*Staged, error) {
	give := func(f *os.File) error {
		if os.Geteuid() != 0 {
			return nil
		}
		return f.Chown(0, gid)
	}
	name, err := stage(path, mode, content, give, (*os.File).Sync)
	if err != nil {
		return nil, fmt.Errorf("writing %q: %w", path, cause(err))
	}
	return &Staged{Name: name, path: path}, nil
}

// Commit puts it in place. After a power cut the old or the new file is there, whole.
func (s *Staged) Commit() error {
	err := os.Rename(s.Name, s.path)
	if err == nil {
		err = syncDir(filepath.Dir(s.path))
	}
	if err != nil {
		return fmt.Errorf("writing %q: %w", s.path, cause(err))
	}
	return nil
}

// Discard removes it, unless it was put in place.
func (s *Staged) Discard() { _ = os.Remove(s.Name) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// GiveToOwner gives a file that root made to the owner of its directory: `kured-agent cleanup`, typed by root, must
// leave nothing that the service, an unprivileged user, can't open again.
func GiveToOwner(f *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	dir := filepath.Dir(f.Name())
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("looking at %q: %w", dir, err)
	}
	if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil {
		return fmt.Errorf("giving it to the owner of %q: %w", dir, cause(err))
	}
	return nil
}
