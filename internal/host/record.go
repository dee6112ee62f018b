// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	recordName  = "record.json"
	recordBound = 256 << 10
)

// ErrBroken says that the record was read and makes no sense. SetAside starts a new one.
var ErrBroken = errors.New("the record makes no sense")

// ReadRecord reads the record. A missing file is an empty record. Any error means that nothing is known: the caller acts
// on nothing, since an empty record would say that nothing is outstanding. A record that others can have written is such
// an error: it could say that a reboot was asked for, or that nothing is outstanding.
func (h Host) ReadRecord() (plan.Record, error) {
	path := h.recordPath()
	raw, err := files.ReadOwn(path, recordBound, files.WrittenByOthers)
	if errors.Is(err, fs.ErrNotExist) {
		return plan.Record{}, nil
	}
	if err != nil {
		return plan.Record{}, err
	}
	var r plan.Record
	if err := json.Unmarshal(raw, &r); err != nil {
		return plan.Record{}, fmt.Errorf("reading %q: %w: %w", path, ErrBroken, err)
	}
	return r, nil
}

// SetAside keeps a broken record beside a new one, which says that anything may be outstanding: Node and Lease tell.
func (h Host) SetAside() (plan.Record, error) {
	unsure := plan.Record{Marked: true}
	if err := os.Rename(h.recordPath(), h.recordPath()+".broken"); err != nil {
		return plan.Record{}, fmt.Errorf("setting the broken record aside: %w", err)
	}
	return unsure, h.writeRecord(unsure)
}

// UpdateRecord changes the newest record and writes it, so that after a power cut either the old or the new one is there,
// whole. The agent and the boot unit may do so at the same time: each changes what it knows about, under a lock.
func (h Host) UpdateRecord(change func(*plan.Record)) error {
	unlock, err := h.lock("record.lock", unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := h.ReadRecord()
	if err != nil {
		return err
	}
	change(&r)
	return h.writeRecord(r)
}

func (h Host) recordPath() string { return filepath.Join(h.path(h.State), recordName) }

func (h Host) writeRecord(r plan.Record) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding record: %w", err)
	}
	return files.ReplaceDurably(h.recordPath(), 0o600, append(raw, '\n'))
}
