// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// Where libostree notes the deployment that the next shutdown puts in place. The file goes away with that, when the
// deployment is discarded, and with the boot.
const (
	ostreeRun    = "run/ostree"
	ostreeStaged = ostreeRun + "/staged-deployment"
	ostreeLocked = ostreeRun + "/staged-deployment-locked"
)

// Exactly one of the types rpm-ostree, bootc and ostree watches a host by itself, or the same deployment would be told
// twice. rpm-ostree knows most: versions, and deployments that were not staged.
const (
	ostreeBooted  = "run/ostree-booted" // not on hosts where bootc does without ostree
	rpmOstreeFile = "usr/share/dbus-1/system-services/org.projectatomic.rpmostree1.service"
	bootcFile     = "usr/bin/bootc"
)

func byRPMOstree(root string) bool {
	return exists(filepath.Join(root, ostreeBooted)) && exists(filepath.Join(root, rpmOstreeFile))
}

func byBootc(root string) bool { return exists(filepath.Join(root, bootcFile)) && !byRPMOstree(root) }

func byOstree(root string) bool {
	return exists(filepath.Join(root, ostreeBooted)) && !exists(filepath.Join(root, bootcFile)) && !byRPMOstree(root)
}

// deployment is a tree that the next boot may start.
type deployment struct {
	name   string // "<checksum of the commit>.<serial>"
	base   string // the name of the deployment that runs now
	locked bool   // it is not put in place at shutdown: a reboot would discard it
}

var deploymentName = regexp.MustCompile(`^[0-9a-f]{64}\.[0-9]{1,9}$`)

// id names the cause. The serial is left out, since a deployment that failed and is made again has the next one; it only
// counts where it alone differs, as with changed kernel arguments.
func (d deployment) id() string {
	if commit(d.name) == commit(d.base) {
		return d.name
	}
	return commit(d.name)
}

func commit(name string) string {
	checksum, _, _ := strings.Cut(name, ".")
	return checksum
}

// short is how ostree and container tools abbreviate a checksum.
func short(checksum string) string { return checksum[:min(len(checksum), 12)] }

// lockedNote is said of an update that waits for its release by whoever staged it.
const lockedNote = "an update is staged and locked: it needs no reboot until it is unlocked"

// stagedState is the state of a host whose only news is a staged deployment, or none.
func stagedState(d *deployment, what string) State {
	switch {
	case d == nil:
		return State{Level: plan.NotRequired}
	case d.locked:
		return State{Level: plan.NotRequired, Note: lockedNote}
	}
	return State{Level: plan.Required, Reasons: []plan.Reason{{
		ID: d.id(), Text: what + " " + short(d.name) + " is staged", Kind: plan.KindFull,
	}}}
}

// readStaged returns the staged deployment of ostree, or nil without one.
func readStaged(root string) (*deployment, error) {
	path := filepath.Join(root, ostreeStaged)
	content, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d, err := parseStaged(content)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	// Before 2023.8 ostree locked with a file only, and tools still do. rpm-ostree looks at nothing but that file, which
	// "bootc upgrade --download-only" does not write.
	d.locked = d.locked || exists(filepath.Join(root, ostreeLocked))
	return d, nil
}

// parseStaged reads libostree's own format, a{sv}: "target" and "merge-deployment" are a{sv} with a "name".
func parseStaged(content []byte) (*deployment, error) {
	dict, err := parseVardict(content)
	if err != nil {
		return nil, err
	}
	target, err := parseName(dict["target"])
	if err != nil {
		return nil, fmt.Errorf("key %q: %w", "target", err)
	}
	d := &deployment{name: target}
	if merge, ok := dict["merge-deployment"]; ok {
		if d.base, err = parseName(merge); err != nil {
			return nil, fmt.Errorf("key %q: %w", "merge-deployment", err)
		}
	}
	if v, ok := dict["locked"]; ok {
		if d.locked, ok = v.flag(); !ok {
			return nil, fmt.Errorf("key %q: not a boolean", "locked")
		}
	}
	return d, nil
}

func parseName(v variant) (string, error) {
	dict, err := v.dict()
	if err != nil {
		return "", err
	}
	name, ok := dict["name"].text()
	if !ok || !deploymentName.MatchString(name) {
		return "", errors.New("no name of a deployment")
	}
	return name, nil
}
