// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// The commits of the files in testdata/staged, which GLib wrote in the layout of libostree.
var (
	newCommit = strings.Repeat("a1b2c3d4", 8)
	oldCommit = strings.Repeat("0f1e2d3c", 8)
)

// stage puts a staged deployment in place the way libostree does: a new file renamed over the old one.
func stage(t *testing.T, root, fixture string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata/staged", fixture))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, ostreeStaged)
	write(t, path+".new", string(content))
	rename(t, path+".new", path)
}

func TestStagedDeploymentsAreReadAsGLibWritesThem(t *testing.T) {
	for fixture, want := range map[string]deployment{
		"update":         {name: newCommit + ".0", base: oldCommit + ".0"},
		"locked":         {name: newCommit + ".0", base: oldCommit + ".0", locked: true},
		"unlocked":       {name: newCommit + ".0", base: oldCommit + ".0"},
		"kargs":          {name: oldCommit + ".1", base: oldCommit + ".0"},
		"no-base":        {name: newCommit + ".0"},
		"many-arguments": {name: newCommit + ".0", base: oldCommit + ".0"},
	} {
		root := t.TempDir()
		stage(t, root, fixture)
		got, err := readStaged(root)
		if err != nil || got == nil {
			t.Errorf("%s: %v", fixture, err)
			continue
		}
		if diff := cmp.Diff(want, *got, cmp.AllowUnexported(deployment{})); diff != "" {
			t.Errorf("%s: %s", fixture, diff)
		}
	}
}

func TestTheIDOfADeploymentIsItsCommitUnlessThatRunsAlready(t *testing.T) {
	for _, c := range []struct{ name, base, want string }{
		{newCommit + ".0", oldCommit + ".0", newCommit},
		{newCommit + ".1", oldCommit + ".0", newCommit}, // the same update, made again after it failed
		{oldCommit + ".1", oldCommit + ".0", oldCommit + ".1"},
		{newCommit + ".0", "", newCommit},
	} {
		if got := (deployment{name: c.name, base: c.base}).id(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestABrokenStagedDeploymentIsAnError(t *testing.T) {
	good, err := os.ReadFile("testdata/staged/update")
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty":        "",
		"cut":          string(good[:len(good)-9]),
		"a key file":   "[staged]\ntarget=" + newCommit + ".0\n",
		"zeros":        strings.Repeat("\x00", 500),
		"other letter": strings.Replace(string(good), newCommit, strings.ToUpper(newCommit), 1),
		"other type":   strings.Replace(string(good), "a{sv}", "a{ss}", 1),
		"too long":     string(good) + strings.Repeat("x", maxFile),
	} {
		root := t.TempDir()
		write(t, filepath.Join(root, ostreeStaged), content)
		if d, err := readStaged(root); err == nil || d != nil {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	root := t.TempDir()
	stage(t, root, "no-target")
	if d, err := readStaged(root); err == nil {
		t.Errorf("without a target: %+v", d)
	}
}

func TestOneSourceWatchesAHost(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"a Debian host":                 {nil, ""},
		"ostree alone":                  {[]string{ostreeBooted}, "ostree"},
		"rpm-ostree":                    {[]string{ostreeBooted, rpmOstreeFile}, "rpm-ostree"},
		"rpm-ostree with bootc":         {[]string{ostreeBooted, rpmOstreeFile, bootcFile}, "rpm-ostree"},
		"bootc":                         {[]string{ostreeBooted, bootcFile}, "bootc"},
		"bootc without ostree":          {[]string{bootcFile}, "bootc"},
		"bootc without ostree, with it": {[]string{bootcFile, rpmOstreeFile}, "bootc"},
		"a host that builds images":     {[]string{rpmOstreeFile}, ""},
	} {
		root := t.TempDir()
		for _, f := range c.files {
			write(t, filepath.Join(root, f), "")
		}
		var got []string
		for _, typ := range []string{"rpm-ostree", "bootc", "ostree"} {
			if kinds[typ].installed(root) {
				got = append(got, typ)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func FuzzStaged(f *testing.F) {
	fixtures, err := os.ReadDir("testdata/staged")
	if err != nil {
		f.Fatal(err)
	}
	for _, entry := range fixtures {
		content, err := os.ReadFile(filepath.Join("testdata/staged", entry.Name()))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		d, err := parseStaged(content)
		if (d == nil) == (err == nil) {
			t.Fatalf("%+v, %v", d, err)
		}
		s := bound("ostree", stagedState(d, "ostree deployment"))
		if s.Level == plan.Required && (d.locked || wrongText("id", s.Reasons[0].ID, plan.MaxReasonID) != "") {
			t.Errorf("%+v says %+v", d, s)
		}
	})
}
