// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	older         = "6.1.0-28-amd64"
	runningKernel = "6.1.0-30-amd64"
	newer         = "6.1.0-31-amd64"
)

// kernelRoot is a Debian host.
func kernelRoot(t *testing.T, images ...string) string {
	t.Helper()
	root := t.TempDir()
	write(t, root+"/proc/sys/kernel/osrelease", runningKernel+"\n")
	for _, release := range images {
		write(t, root+"/boot/vmlinuz-"+release, "")
	}
	return root
}

func TestTheFlavourIsTheWordsAtTheEnd(t *testing.T) {
	for release, want := range map[string][2]string{
		"6.1.0-28-amd64":                  {"6.1.0-28", "amd64"},
		"6.1.0-28-cloud-amd64":            {"6.1.0-28", "cloud-amd64"},
		"6.1.0-0.deb11.25-amd64":          {"6.1.0-0.deb11.25", "amd64"},
		"6.12.48+deb13-amd64":             {"6.12.48+deb13", "amd64"},
		"6.8.0-49-generic":                {"6.8.0-49", "generic"},
		"6.8.0-49-generic-64k":            {"6.8.0-49", "generic-64k"},
		"6.8.0-1018-aws":                  {"6.8.0-1018", "aws"},
		"5.14.0-503.el9.x86_64":           {"5.14.0-503.el9", "x86_64"},
		"5.14.0-503.el9.x86_64+rt":        {"5.14.0-503.el9", "x86_64+rt"},
		"5.14.0-503.el9.x86_64+debug":     {"5.14.0-503.el9", "x86_64+debug"},
		"5.14.0-503.15.1.el9_5.aarch64":   {"5.14.0-503.15.1.el9_5", "aarch64"},
		"5.15.0-300.163.18.el9uek.x86_64": {"5.15.0-300.163.18.el9uek", "uekx86_64"},
		"6.11.5-1.el9.elrepo.x86_64":      {"6.11.5-1.el9.elrepo", "elrepox86_64"},
		"3.10.0-1160.el7.x86_64.debug":    {"3.10.0-1160.el7", "x86_64.debug"},
		"6.12.0-55.el10.x86_64_v2":        {"6.12.0-55.el10", "x86_64_v2"},
		"6.11.4-301.fc41.x86_64":          {"6.11.4-301.fc41", "x86_64"},
		"6.1.115-126.197.amzn2023.x86_64": {"6.1.115-126.197.amzn2023", "x86_64"},
		"6.4.0-150600.23.25-default":      {"6.4.0-150600.23.25", "default"},
		"6.4.0-150600.23.25-64kb":         {"6.4.0-150600.23.25", "64kb"},
		"6.8.12-4-pve":                    {"6.8.12-4", "pve"},
		"6.11.5-arch1-1":                  {"6.11.5-arch1-1", ""},
		"6.11.5-zen1-1-zen":               {"6.11.5-zen1-1", "zen"},
		"6.6.58-0-lts":                    {"6.6.58-0", "lts"},
		"6.6.51+rpt-rpi-v8":               {"6.6.51+rpt", "rpi-v8"},
		"6.12.0":                          {"6.12.0", ""},
		"":                                {"", ""},
		"-":                               {"-", ""},
	} {
		if version, flavour := splitRelease(release); version != want[0] || flavour != want[1] {
			t.Errorf("splitRelease(%q) = %q, %q", release, version, flavour)
		}
	}
}

func TestANewerKernelOfTheSameFlavourIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		runningKernel string
		installed     string
		want          string
	}{
		"Debian":                {runningKernel, older + " " + runningKernel + " " + newer, newer},
		"the newest of several": {runningKernel, "6.1.0-100-amd64 6.10.0-1-amd64 6.9.0-7-amd64 " + newer, "6.10.0-1-amd64"},
		"numbers, not letters":  {"6.1.0-9-amd64", "6.1.0-28-amd64", "6.1.0-28-amd64"},
		"only older ones":       {runningKernel, older + " 5.10.0-33-amd64", ""},
		"only itself":           {runningKernel, runningKernel, ""},
		"a backport":            {"6.1.0-28-amd64", "6.12.9+bpo-amd64", "6.12.9+bpo-amd64"},
		"other flavours":        {runningKernel, "6.1.0-31-cloud-amd64 6.1.0-31-rt-amd64", ""},
		"a release candidate":   {"6.12~rc6-amd64", "6.12.6-amd64 6.12~rc5-amd64", "6.12.6-amd64"},
		"Ubuntu":                {"6.8.0-48-generic", "6.8.0-49-generic 6.8.0-50-lowlatency", "6.8.0-49-generic"},
		"Ubuntu HWE":            {"5.15.0-126-generic", "6.8.0-49-generic", "6.8.0-49-generic"},
		"Ubuntu, cloud":         {"6.8.0-1018-aws", "6.8.0-1019-aws 6.8.0-1020-azure", "6.8.0-1019-aws"},
		"RHEL": {"5.14.0-503.el9.x86_64", "5.14.0-427.42.1.el9_4.x86_64 5.14.0-503.15.1.el9_5.x86_64",
			"5.14.0-503.15.1.el9_5.x86_64"},
		"RHEL, debug":    {"5.14.0-427.el9.x86_64", "5.14.0-503.el9.x86_64+debug", ""},
		"RHEL 7, debug":  {"3.10.0-1062.el7.x86_64", "3.10.0-1160.el7.x86_64.debug", ""},
		"RHEL, rescue":   {"5.14.0-503.el9.x86_64", "0-rescue-2c1d5c3b0c4d4f0e9a3f6a1b2c3d4e5f", ""},
		"Oracle":         {"5.14.0-503.el9.x86_64", "5.15.0-300.163.18.el9uek.x86_64 6.11.5-1.el9.elrepo.x86_64", ""},
		"Fedora upgrade": {"6.11.4-201.fc40.x86_64", "6.11.4-301.fc41.x86_64", "6.11.4-301.fc41.x86_64"},
		"SUSE":           {"6.4.0-150600.21-default", "6.4.0-150600.23.25-default", "6.4.0-150600.23.25-default"},
		"Arch":           {"6.11.5-arch1-1", "6.11.5-arch2-1 6.6.58-1-lts", "6.11.5-arch2-1"},
		"built by hand":  {"6.12.0", "6.12.1 6.12.0.old 6.13.0.old 6.12.2~", "6.12.1"},
		"half unpacked":  {runningKernel, newer + ".dpkg-new " + newer + ".dpkg-tmp 6.2.rpmnew", ""},
		"no release":     {runningKernel, "lts linux generic", ""},
		"empty":          {"", "6.1.0", "6.1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			installed := strings.Fields(c.installed)
			if got := newestKernel(c.runningKernel, installed); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			slices.Reverse(installed)
			if got := newestKernel(c.runningKernel, installed); got != c.want {
				t.Errorf("in reverse: got %q, want %q", got, c.want)
			}
		})
	}
}

func TestANewKernelInBootRequiresAReboot(t *testing.T) {
	root := kernelRoot(t, older, runningKernel)
	p := start(t, Env{Root: root}, "kernel", nil)
	if s := p.becomes("at start", plan.NotRequired); s.Note != "running "+runningKernel {
		t.Errorf("note %q", s.Note)
	}
	// As dpkg unpacks it.
	image := root + "/boot/vmlinuz-" + newer
	write(t, image+".dpkg-new", "")
	rename(t, image+".dpkg-new", image)
	s := p.becomes("unpacked", plan.Required)
	want := plan.Reason{Source: "kernel", ID: newer,
		Text: "kernel " + newer + " is installed, " + runningKernel + " is running", Kind: plan.KindKexec}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	remove(t, image)
	p.becomes("purged", plan.NotRequired)
}

func TestAnImageBesideTheModulesCountsAndModulesAloneDoNot(t *testing.T) {
	root := kernelRoot(t)
	write(t, root+"/lib/modules/"+runningKernel+"/vmlinuz", "")
	write(t, root+"/lib/modules/"+newer+"/updates/dkms/left.ko", "")
	k := kernel{root: root}
	if s := k.read(); s.Level != plan.NotRequired {
		t.Errorf("modules alone: %+v", s)
	}
	write(t, root+"/lib/modules/"+newer+"/vmlinuz", "")
	if s := k.read(); !slices.Equal(ids(s), []string{newer}) {
		t.Errorf("with an image: %+v", s)
	}
}

func TestWhatTellsNothingOfTheKernelsIsUnknown(t *testing.T) {
	for name, root := range map[string]string{
		"no running kernel": t.TempDir(),
		"no installed one":  kernelRoot(t),
	} {
		if s := (&kernel{root: root}).read(); s.Level != plan.Unknown || s.Err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	root := kernelRoot(t)
	write(t, root+"/boot", "a file")
	s := (&kernel{root: root}).read()
	if s.Level != plan.Unknown || !strings.Contains(message(s.Err), "not a directory") ||
		!strings.Contains(message(s.Err), "ProtectKernelModules=no") {
		t.Errorf("a file in place of /boot: %+v", s)
	}
	// As in the agent's unit: /lib/modules can't be read, /boot can.
	write(t, root+"/lib/modules", "")
	remove(t, root+"/boot")
	write(t, root+"/boot/vmlinuz-"+newer, "")
	if s := (&kernel{root: root}).read(); s.Level != plan.Required {
		t.Errorf("without the modules: %+v", s)
	}
}

func TestADirectoryOrAPipeInBootIsHarmless(t *testing.T) {
	root := kernelRoot(t, runningKernel)
	for _, dir := range []string{"/boot/vmlinuz-" + newer, "/boot/efi/vmlinuz-" + newer} {
		if err := os.MkdirAll(root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if s := (&kernel{root: root}).read(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

func FuzzSplitRelease(f *testing.F) {
	f.Add(runningKernel, newer)
	f.Add("5.14.0-503.el9.x86_64+rt", "0-rescue-")
	f.Fuzz(func(t *testing.T, runningKernel, installed string) {
		version, flavour := splitRelease(installed)
		if len(version)+len(flavour) > 2*len(installed) {
			t.Errorf("%q: %q and %q", installed, version, flavour)
		}
		if got := newestKernel(runningKernel, []string{installed, runningKernel}); got != "" && (got != installed || got == runningKernel) {
			t.Errorf("newestKernel(%q, %q) = %q", runningKernel, installed, got)
		}
	})
}
