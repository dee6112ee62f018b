// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	recordName  = "record.json"
	recordBound = 256 << 10
)

// ReadRecord reads the record. A missing file is an empty record. A file that can't be read or understood is an error
// and comes with a record that says that anything may be outstanding: the Node and the Lease then tell.
func (h Host) ReadRecord() (plan.Record, error) {
	unsure := plan.Record{Marked: true}
	path := filepath.Join(h.path(h.State), recordName)
	raw, err := readBounded(path, recordBound)
	if errors.Is(err, fs.ErrNotExist) {
		return plan.Record{}, nil
	}
	if err != nil {
		return unsure, err
	}
	var r plan.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		return unsure, fmt.Errorf("reading %q: %w", path, err)
	}
	return r, nil
}

// WriteRecord replaces the record, so that after a power cut either the old or the new one is there, whole.
func (h Host) WriteRecord(r plan.Record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding record: %w", err)
	}
	return writeAtomic(h.path(h.State), recordName, append(raw, '\n'))
}

// writeAtomic writes dir/name through a temporary file, fsync of the file, rename, fsync of the directory.
func writeAtomic(dir, name string, content []byte) (err error) {
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return fmt.Errorf("writing %q: %w", filepath.Join(dir, name), err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err = giveTo(f, dir); err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return fmt.Errorf("writing %q: %w", filepath.Join(dir, name), err)
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("opening %q: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing %q: %w", dir, err)
	}
	return nil
}
