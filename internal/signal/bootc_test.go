// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// imageID is the digest of an image's root, a SHA-512.
var imageID = strings.Repeat("5e6f7a8b", 16)

func stageImage(t *testing.T, root string, locked bool) {
	t.Helper()
	path := filepath.Join(root, composefsStaged)
	write(t, path+".tmp", fmt.Sprintf(`{"depl_id":%q,"finalization_locked":%v}`, imageID, locked))
	rename(t, path+".tmp", path)
}

func TestAnImageThatBootcStagedWithOstreeRequiresAReboot(t *testing.T) {
	root := t.TempDir()
	stage(t, root, "update")
	p := start(t, Env{Root: root}, "bootc", nil)
	s := p.becomes("at start", plan.Required)
	want := plan.Reason{Source: "bootc", ID: newCommit, Text: "bootc image a1b2c3d4a1b2 is staged", Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	stage(t, root, "locked") // bootc upgrade --download-only
	p.shows("downloaded only", func(s State) bool { return s.Level == plan.NotRequired && s.Note == lockedNote })
	stage(t, root, "unlocked") // bootc upgrade --from-downloaded
	p.becomes("unlocked", plan.Required)
}

func TestAnImageThatBootcStagedWithoutOstreeIsFollowed(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/run/other", "")
	p := start(t, Env{Root: root}, "bootc", nil)
	p.becomes("at start", plan.NotRequired)
	stageImage(t, root, true)
	p.shows("downloaded only", func(s State) bool { return s.Level == plan.NotRequired && s.Note == lockedNote })
	stageImage(t, root, false)
	s := p.becomes("staged", plan.Required)
	want := plan.Reason{Source: "bootc", ID: imageID, Text: "bootc image 5e6f7a8b5e6f is staged", Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	write(t, filepath.Join(root, composefsStaged), "{")
	p.becomes("nonsense", plan.Unknown)
	remove(t, filepath.Join(root, composefsStaged))
	p.becomes("discarded", plan.NotRequired)
}

func FuzzComposefs(f *testing.F) {
	f.Add([]byte(`{"depl_id":"` + imageID + `","finalization_locked":false}`))
	f.Add([]byte(`{"finalization_locked":true}`))
	f.Add([]byte(`[1]`))
	f.Fuzz(func(t *testing.T, content []byte) {
		d, err := parseComposefs(content)
		if (d == nil) == (err == nil) {
			t.Fatalf("%+v, %v", d, err)
		}
		if s := bound("bootc", stagedState(d, "bootc image")); s.Level == plan.Required && s.Reasons[0].ID != d.name {
			t.Errorf("%+v says %+v", d, s)
		}
	})
}
