// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// systemd is a service manager beside logind, which says to be of this version.
func systemd(d *bustest.Daemon) (set func(version any)) {
	s := bustest.NewSystemd1(d)
	return func(version any) {
		s.SetProperty("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "Version", version)
	}
}

// loadKexec writes what the kernel says about a loaded one; empty is a kernel without kexec.
func loadKexec(t *testing.T, c *Client, says string) {
	t.Helper()
	c.Root = t.TempDir()
	if says == "" {
		return
	}
	file := filepath.Join(c.Root, kexecLoaded)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(says), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTheKindsOfRebootFollowTheVersionAndTheLoadedKernel(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewLogin1(d)
	c := client(t, d)
	full := []plan.Kind{plan.KindFull}
	if got := c.Kinds(t.Context()); !slices.Equal(got, full) {
		t.Errorf("without systemd on the bus: %v", got)
	}
	setVersion := systemd(d)
	for _, x := range []struct {
		version any
		kexec   string
		want    []plan.Kind
	}{
		{"247.3-7+deb11u8", "1\n", full},
		{"249.11-0ubuntu3", "0\n", full},
		{"249.11-0ubuntu3", "1\n", []plan.Kind{plan.KindKexec, plan.KindFull}},
		{"252.39-1~deb12u2", "1\n", []plan.Kind{plan.KindKexec, plan.KindFull}},
		{"255.4-1ubuntu8", "", full},
		{"256", "", []plan.Kind{plan.KindSoft, plan.KindFull}},
		{"257.13-1~deb13u1", "1\n", []plan.Kind{plan.KindSoft, plan.KindKexec, plan.KindFull}},
		{"262-1", "10", []plan.Kind{plan.KindSoft, plan.KindFull}},
		{"", "1\n", full},
		{"main-dirty", "1\n", full},
		{uint32(257), "1\n", full},
	} {
		setVersion(x.version)
		loadKexec(t, c, x.kexec)
		if got := c.Kinds(t.Context()); !slices.Equal(got, x.want) {
			t.Errorf("version %v, kexec %q: %v, want %v", x.version, x.kexec, got, x.want)
		}
	}
}

func TestAKindThatTheHostCannotDoIsRefusedAndNothingIsAsked(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c, setVersion := client(t, d), systemd(d)
	for _, x := range []struct {
		kind    plan.Kind
		version any
		kexec   string
		class   Class
		says    string
	}{
		{plan.KindSoft, "252.39-1~deb12u2", "1\n", Unsupported, "no soft reboot"},
		{plan.KindSoft, "next", "1\n", Unsupported, "version"},
		{plan.KindSoft, 257.5, "1\n", Unavailable, "Version"},
		{plan.KindKexec, "247.3-7+deb11u8", "1\n", Unsupported, "no reboot by kexec"},
		{plan.KindKexec, "257.13-1~deb13u1", "0\n", Unsupported, "no kernel is loaded"},
		{plan.KindKexec, "257.13-1~deb13u1", "", Unsupported, "no kexec"},
	} {
		setVersion(x.version)
		loadKexec(t, c, x.kexec)
		err := c.Reboot(t.Context(), x.kind)
		if classOf(t, err) != x.class || !strings.Contains(err.Error(), x.says) {
			t.Errorf("kind %v on %v: %v", x.kind, x.version, err)
		}
	}
	if calls := append(login.Calls("RebootWithFlags"), login.Calls("Reboot")...); len(calls) > 0 {
		t.Errorf("logind was asked: %v", calls)
	}
}

func TestSoftAndKexecAreAskedForByTheirFlags(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	login.SetVersion(257)
	systemd(d)("257.13-1~deb13u1")
	c := client(t, d)
	loadKexec(t, c, "1\n")
	for i, x := range []struct {
		kind plan.Kind
		flag uint64
	}{{plan.KindSoft, flagSoft}, {plan.KindKexec, flagKexec}, {plan.KindFull, 0}} {
		if err := c.Reboot(t.Context(), x.kind); err != nil {
			t.Errorf("kind %v: %v", x.kind, err)
		}
		if calls := login.Calls("RebootWithFlags"); len(calls) != i+1 || calls[i].Args[0] != x.flag {
			t.Errorf("kind %v: calls %v", x.kind, calls)
		}
	}
}

func TestALogindOlderThanItsSystemdNeverGetsAFullRebootForASoftOne(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	systemd(d)("257.13-1~deb13u1")
	c := client(t, d)
	loadKexec(t, c, "1\n")
	for version, kind := range map[int]plan.Kind{252: plan.KindSoft, 248: plan.KindKexec, 247: plan.KindKexec} {
		login.SetVersion(version)
		if err := c.Reboot(t.Context(), kind); classOf(t, err) != Unsupported {
			t.Errorf("kind %v with logind %d: %v", kind, version, err)
		}
	}
	if calls := login.Calls("Reboot"); len(calls) > 0 {
		t.Errorf("a full reboot was asked for: %v", calls)
	}
}

func TestTheVersionIsFoundInWhatDistributionsMakeOfIt(t *testing.T) {
	for s, want := range map[string]int{
		"257.13-1~deb13u1": 257, "v255": 255, "systemd 249 (249.11-0ubuntu3.12)": 249, "252-46.el9": 252, "262~rc2": 262,
		"": 0, "main": 0, "0": 0, "99999999999999999999": 0, "-257": 257, "²⁵⁷": 0,
	} {
		if got, ok := parseVersion(s); ok != (want > 0) || ok && got != want {
			t.Errorf("parseVersion(%q) = %d, %v", s, got, ok)
		}
	}
}
