// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/kured-agent/kured-agent/internal/files"
)

// maxFile is the most that is ever read of a file.
const maxFile = 64 << 10

// errNotRegular is returned for a directory, pipe or device where a file is expected.
var errNotRegular = errors.New("not a regular file")

// readFile returns at most maxFile bytes. It never blocks on a pipe that somebody put in the file's place.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// writeJSON replaces a file in the runtime directory, which does not outlive the kernel.
func writeJSON(path string, v any) error {
	var content bytes.Buffer
	enc := json.NewEncoder(&content)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encoding %q: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return files.Replace(path, 0o600, content.Bytes())
}
