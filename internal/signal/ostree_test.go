// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/plan"
)

func TestADeploymentThatWasStagedBeforeTheStartRequiresAReboot(t *testing.T) {
	root := t.TempDir()
	stage(t, root, "update")
	s := start(t, Env{Root: root}, "ostree", nil).becomes("at start", plan.Required)
	want := plan.Reason{Source: "ostree", ID: newCommit, Text: "ostree deployment a1b2c3d4a1b2 is staged",
		Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
}

func TestStagingLockingAndDiscardingAreFollowed(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/run/other", "")
	p := start(t, Env{Root: root}, "ostree", nil)
	p.becomes("at start", plan.NotRequired)
	stage(t, root, "update")
	p.becomes("staged", plan.Required)
	lock := filepath.Join(root, ostreeLocked)
	write(t, lock, "")
	p.shows("locked by a file", func(s State) bool { return s.Level == plan.NotRequired && s.Note == lockedNote })
	remove(t, lock)
	p.becomes("unlocked", plan.Required)
	stage(t, root, "locked")
	p.shows("locked inside", func(s State) bool { return s.Level == plan.NotRequired && s.Note == lockedNote })
	stage(t, root, "kargs")
	p.shows("other kernel arguments", func(s State) bool { return slices.Equal(ids(s), []string{oldCommit + ".1"}) })
	remove(t, filepath.Join(root, ostreeStaged))
	p.shows("discarded", func(s State) bool { return s.Level == plan.NotRequired && s.Note == "" })
	remove(t, filepath.Join(root, ostreeRun))
	stage(t, root, "update")
	p.becomes("in a new directory", plan.Required)
}

func TestAStagedDeploymentThatCannotBeReadIsUnknown(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, ostreeStaged), "nonsense")
	p := start(t, Env{Root: root}, "ostree", nil)
	if s := p.becomes("nonsense", plan.Unknown); !strings.Contains(s.Err.Error(), "not a serialized dictionary") {
		t.Errorf("error %v", s.Err)
	}
	remove(t, filepath.Join(root, ostreeStaged))
	if err := os.Mkdir(filepath.Join(root, ostreeStaged), 0o755); err != nil {
		t.Fatal(err)
	}
	p.shows("a directory", func(s State) bool {
		return s.Level == plan.Unknown && strings.Contains(s.Err.Error(), "not a regular file")
	})
	remove(t, filepath.Join(root, ostreeStaged))
	p.becomes("gone", plan.NotRequired)
}
