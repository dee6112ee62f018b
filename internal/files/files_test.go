// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ways are both ways to replace a file.
var ways = map[string]func(string, fs.FileMode, []byte) error{"whole": Replace, "durably": ReplaceDurably}

func TestAFileLargerThanItsBoundIsAnError(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path, 5); err != nil || string(got) != "12345" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Read(path, 4); err == nil || !strings.Contains(err.Error(), "larger than 4 bytes") {
		t.Errorf("one byte too many: %v", err)
	}
	if _, err := Read(filepath.Dir(path), 4); err == nil {
		t.Error("a directory has no error")
	}
	if _, err := Read(path+"-", 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestAReaderFindsTheOldFileOrTheNewOne(t *testing.T) {
	t.Parallel()
	for name, replace := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f")
			if err := replace(path, 0o600, []byte("old")); err != nil {
				t.Fatal(err)
			}
			reader, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			if err := replace(path, 0o644, []byte("new")); err != nil {
				t.Fatal(err)
			}
			if content, _ := io.ReadAll(reader); string(content) != "old" {
				t.Errorf("the open file says %q", content)
			}
			content, err := os.ReadFile(path)
			if err != nil || string(content) != "new" {
				t.Errorf("the file says %q, %v", content, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
			alone(t, path)
		})
	}
}

func TestALinkIsReplacedAndItsTargetStays(t *testing.T) {
	t.Parallel()
	for name, replace := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, precious := filepath.Join(t.TempDir(), "f"), filepath.Join(t.TempDir(), "precious")
			if err := os.WriteFile(precious, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(precious, path); err != nil {
				t.Fatal(err)
			}
			if err := replace(path, 0o600, []byte("new")); err != nil {
				t.Fatal(err)
			}
			if content, err := os.ReadFile(precious); err != nil || string(content) != "x" {
				t.Errorf("the target says %q, %v", content, err)
			}
		})
	}
}

func TestAFileThatCannotBeReplacedLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for name, replace := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f")
			if err := os.Mkdir(path, 0o700); err != nil { // a file never takes the place of a directory
				t.Fatal(err)
			}
			want := fmt.Sprintf("writing %q: file exists", path)
			for range 2 { // the same trouble in the same words, so that it need not be told twice
				if err := replace(path, 0o600, nil); err == nil || err.Error() != want {
					t.Errorf("a directory in its place: %v, want %s", err, want)
				}
			}
			alone(t, path)
			if err := replace(filepath.Join(path, "none", "f"), 0o600, nil); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("no directory: %v", err)
			}
		})
	}
}

func TestWhatRootWritesBelongsToTheOwnerOfTheDirectory(t *testing.T) {
	t.Parallel()
	dir, uid := t.TempDir(), os.Geteuid()
	if uid == 0 {
		uid = 12345
		if err := os.Chown(dir, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "f")
	if err := Replace(path, 0o600, nil); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; int(owner) != uid {
		t.Errorf("it belongs to %d, want %d", owner, uid)
	}
}

// alone fails the test when anything else is in the directory.
func alone(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("in the directory: %v, %v", entries, err)
	}
}

func TestOnlyWhatOthersCanNeitherWriteNorReplaceIsOurs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		file, dir  fs.FileMode
		uid        int // owner of the file; needs root
		forbidden  fs.FileMode
		want, mend string
	}{
		{name: "ours", file: 0o600, dir: 0o700, forbidden: SeenByOthers},
		{name: "readable, and no secret", file: 0o644, dir: 0o755, forbidden: WrittenByOthers},
		{name: "readable secret", file: 0o644, dir: 0o700, forbidden: SeenByOthers, want: "open to others", mend: "chmod 0600"},
		{name: "writable", file: 0o666, dir: 0o700, forbidden: WrittenByOthers, want: "open to others", mend: "chmod 0644"},
		{name: "replaceable", file: 0o600, dir: 0o777, forbidden: WrittenByOthers, want: "directory", mend: "chmod 0755"},
		{name: "of another user", file: 0o600, dir: 0o700, uid: 54321, forbidden: WrittenByOthers, want: "user 54321",
			mend: "chown"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "f")
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(path, c.file), os.Chmod(dir, c.dir)); err != nil {
			t.Fatal(err)
		}
		if c.uid != 0 {
			if os.Geteuid() != 0 {
				t.Log("only root can give a file away")
				continue
			}
			if err := os.Chown(path, c.uid, -1); err != nil {
				t.Fatal(err)
			}
		}
		content, err := ReadOwn(path, 10, c.forbidden)
		if c.want == "" {
			if err != nil || string(content) != "x" {
				t.Errorf("%s: %q, %v", c.name, content, err)
			}
			continue
		}
		if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.mend) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestAnOwnFileIsNoLinkAndNoFifo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target, link, fifo := filepath.Join(dir, "f"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(target, []byte("x"), 0o600), os.Symlink(target, link), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, fifo, dir} {
		if content, err := ReadOwn(path, 10, WrittenByOthers); err == nil {
			t.Errorf("%s: %q", path, content)
		}
	}
	if _, err := ReadOwn(filepath.Join(dir, "none"), 10, WrittenByOthers); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// What root reads belongs to the user of the directory: the agent wrote it.
func TestRootBelievesTheUserOfTheDirectory(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Log("not root")
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chown(path, 12345, -1), os.Chown(dir, 12345, -1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ReadOwn(path, 10, SeenByOthers); err != nil {
		t.Error(err)
	}
}

func TestAStagedFileReplacesOnlyWhenItIsTold(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	content := func(path string) string { raw, _ := os.ReadFile(path); return string(raw) }
	first, err := Stage(path, 0o640, os.Getgid(), []byte("never"))
	if err != nil {
		t.Fatal(err)
	}
	if content(first.Name) != "never" || content(path) != "old" {
		t.Errorf("waiting %q, in place %q", content(first.Name), content(path))
	}
	first.Discard()
	second, err := Stage(path, 0o640, os.Getgid(), []byte("new"))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Commit(); err != nil {
		t.Fatal(err)
	}
	second.Discard()
	info, err := os.Stat(path)
	if err != nil || content(path) != "new" || info.Mode().Perm() != 0o640 {
		t.Errorf("%q, %v, %v", content(path), info, err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if _, err := Stage(filepath.Join(path, "f"), 0o640, 0, nil); err == nil || strings.Count(err.Error(), path) != 1 {
		t.Errorf("below a file: %v", err)
	}
}
