// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"regexp"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	composefsRun    = "run/composefs"
	composefsStaged = composefsRun + "/staged-deployment"
)

func init() {
	register("bootc", kind{
		about: About{
			Watched: "`/run/ostree/staged-deployment` and `/run/composefs/staged-deployment`, after bootc's two ways of " +
				"storing images (inotify, and every 5 minutes); where rpm-ostree is installed and serves the host, " +
				"`rpm-ostree` does it",
			Required: "an image is staged and not downloaded only; a queued `bootc rollback` is only seen by the source " +
				"`file`",
			Cleared: "the image is discarded or locked, or the boot",
			Beside:  "`systemctl mask --now bootc-fetch-apply-updates.timer`",
		},
		build: func(_ map[string]any, env Env) Source {
			return &bootc{root: env.Root, log: env.Logger}
		},
		presets: []map[string]any{nil}, installed: byBootc,
	})
}

// bootc has no service to ask. Its own unit bootc-status-updated.path hints at less than these files: it watches only
// hosts with ostree, and not the lock.
type bootc struct {
	root string
	log  *slog.Logger
}

func (b *bootc) Name() string { return "bootc" }

func (b *bootc) Run(ctx context.Context, report func(State)) error {
	dirs := []string{filepath.Join(b.root, ostreeRun), filepath.Join(b.root, composefsRun)}
	return followDirs(ctx, b.log, dirs, b.read, report)
}

// read looks at both: a host has one of them, and which shows only in what is there.
func (b *bootc) read() State {
	d, err := readComposefs(b.root)
	if d == nil && err == nil {
		d, err = readStaged(b.root)
	}
	if err != nil {
		return State{Level: plan.Unknown, Err: err}
	}
	return stagedState(d, "bootc image")
}

func readComposefs(root string) (*deployment, error) {
	path := filepath.Join(root, composefsStaged)
	content, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d, err := parseComposefs(content)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	return d, nil
}

var composefsID = regexp.MustCompile(`^[0-9a-f]{64,128}$`)

// parseComposefs reads the JSON of bootc: the digest of the image's root, and whether it is downloaded only.
func parseComposefs(content []byte) (*deployment, error) {
	var staged struct {
		ID     string `json:"depl_id"`
		Locked *bool  `json:"finalization_locked"`
	}
	if err := json.Unmarshal(content, &staged); err != nil {
		return nil, err
	}
	if !composefsID.MatchString(staged.ID) || staged.Locked == nil {
		return nil, errors.New("no digest or no lock state")
	}
	return &deployment{name: staged.ID, locked: *staged.Locked}, nil
}
