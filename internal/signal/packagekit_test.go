// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const kernelPackage = "kernel;5.14.0-503.el9;x86_64;installed"

// hearing starts the source and returns once it hears the transactions of kit.
func hearing(t *testing.T, env Env, kit *bustest.FakePackageKit) *probe {
	t.Helper()
	p := start(t, env, "packagekit", nil)
	p.becomes("at start", plan.NotRequired)
	bustest.Eventually(t, "the match", func() bool {
		kit.RequireRestart("malformed")
		return p.state().Note != ""
	})
	return p
}

func TestAPackageThatRequiresARestartOfTheSystemIsKept(t *testing.T) {
	d := bustest.Start(t)
	kit := bustest.NewPackageKit(d)
	env := Env{Bus: startBus(t, d), Runtime: t.TempDir()}
	p := hearing(t, env, kit)
	kit.RequireRestart(uint32(4), kernelPackage)
	s := p.becomes("type 4", plan.Required)
	want := plan.Reason{Source: "packagekit", ID: "kernel 5.14.0-503.el9", Text: "package kernel 5.14.0-503.el9",
		Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	kit.RequireRestart(uint32(4), kernelPackage)
	kit.RequireRestart(uint32(6), "glibc;2.34-125.el9;x86_64;installed")
	both := []string{"kernel 5.14.0-503.el9", "glibc 2.34-125.el9"}
	p.shows("type 6", func(s State) bool { return slices.Equal(ids(s), both) })

	kit.Disconnect() // it idles out
	d.Kill()
	p.shows("the bus is away", func(State) bool { return !env.Bus.Connected() })
	if s := p.state(); !slices.Equal(ids(s), both) {
		t.Errorf("without the bus: %+v", s)
	}
	p.stop()
	d.Restart()
	if s := start(t, env, "packagekit", nil).becomes("another agent", plan.Required); !slices.Equal(ids(s), both) {
		t.Errorf("after a restart: %+v", s)
	}
}

func TestOtherRestartsDoNotCount(t *testing.T) {
	d := bustest.Start(t)
	kit := bustest.NewPackageKit(d)
	p := hearing(t, Env{Bus: startBus(t, d)}, kit)
	kit.RestartSchedule()
	for _, restart := range []uint32{0, 1, 2, 3, 5, 7, 260} {
		kit.RequireRestart(restart, kernelPackage)
	}
	onlyTheLastCounts(t, p, kit)
}

func TestMalformedAndForgedRestartsChangeNothing(t *testing.T) {
	d := bustest.Start(t)
	kit := bustest.NewPackageKit(d)
	b := startBus(t, d)
	p := hearing(t, Env{Bus: b}, kit)
	for _, body := range [][]any{
		{}, {uint32(4)}, {int32(4), "a"}, {"4", "a"}, {uint32(4), uint32(4)}, {uint32(4), "a", "b"},
	} {
		kit.RequireRestart(body...)
	}
	if s := onlyTheLastCounts(t, p, kit); !strings.Contains(s.Note, "malformed signals ignored") {
		t.Errorf("note %q", s.Note)
	}
	stranger := bustest.NewStranger(d)
	const restart = "org.freedesktop.PackageKit.Transaction.RequireRestart"
	stranger.Forge("/1_abcdefgh", restart, uint32(4), kernelPackage)
	kit.Disconnect()
	stranger.Forge("/2_abcdefgh", restart, uint32(4), kernelPackage)
	bustest.Eventually(t, "the unicast ones counted", func() bool { return b.Dropped() == 2 })
	if s := p.state(); !slices.Equal(ids(s), []string{"last"}) {
		t.Errorf("state %+v", s)
	}
}

// onlyTheLastCounts emits a restart that counts. Signals come in order: when it is heard, so are those before it.
func onlyTheLastCounts(t *testing.T, p *probe, kit *bustest.FakePackageKit) State {
	t.Helper()
	kit.RequireRestart(uint32(4), "last;;;")
	s := p.becomes("the last", plan.Required)
	if !slices.Equal(ids(s), []string{"last"}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	return s
}

func TestThousandsOfPackagesAreBounded(t *testing.T) {
	d := bustest.Start(t)
	kit := bustest.NewPackageKit(d)
	env := Env{Bus: startBus(t, d), Runtime: t.TempDir()}
	p := hearing(t, env, kit)
	for i := range 3000 {
		kit.RequireRestart(uint32(4), fmt.Sprintf("package%d;1;%s;", i, strings.Repeat("x", 1000)))
	}
	p.shows("full", func(s State) bool { return len(s.Reasons) == plan.MaxReasons })
	content, err := os.ReadFile(filepath.Join(env.Runtime, "packagekit.json"))
	if err != nil || len(content) > 2*plan.MaxReasons*plan.MaxReasonID {
		t.Errorf("%d bytes are stored, %v", len(content), err)
	}
}

func TestATriggeredOfflineUpdateRequiresAReboot(t *testing.T) {
	d := bustest.Start(t)
	kit := bustest.NewPackageKit(d)
	root := t.TempDir()
	p := hearing(t, Env{Bus: startBus(t, d), Root: root}, kit)
	link := filepath.Join(root, "system-update")
	trigger := func(target string) {
		t.Helper()
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		kit.Triggered(true)
	}
	cancel := func() {
		t.Helper()
		remove(t, link)
		kit.Triggered(false)
		p.becomes("cancelled", plan.NotRequired)
	}
	prepared := offlinePrepared[0]
	write(t, root+prepared, "[update]\nprepared_ids=kernel;1;x86_64;updates\n")
	trigger(prepared)
	first := ids(p.becomes("triggered", plan.Required))
	cancel()
	write(t, root+prepared, "[update]\nprepared_ids=kernel;2;x86_64;updates\n")
	trigger(prepared)
	second := ids(p.becomes("another one", plan.Required))
	if len(first) != 1 || len(second) != 1 || first[0] == second[0] || !strings.HasPrefix(first[0], "prepared-update ") {
		t.Errorf("IDs %q and %q", first, second)
	}
	kit.Disconnect()
	if s := p.becomes("it idled out", plan.Required); !slices.Equal(ids(s), second) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	kit.Connect()
	cancel()
	trigger(offlinePrepared[1])
	p.shows("an upgrade that can't be read", func(s State) bool {
		return slices.Equal(ids(s), []string{"prepared-upgrade"})
	})
}

func TestTheOfflineUpdateOfAnotherProgramIsNotOfPackageKit(t *testing.T) {
	for _, target := range []string{"/var/lib/dnf/system-upgrade", "/var/lib/fwupd", "prepared-update", ""} {
		root := t.TempDir()
		if target == "" {
			write(t, root+"/system-update", "")
		} else if err := os.Symlink(target, root+"/system-update"); err != nil {
			t.Fatal(err)
		}
		p := &packageKit{root: root}
		if reasons, err := p.offline(); len(reasons) != 0 || err != nil {
			t.Errorf("%q: %v, %v", target, reasons, err)
		}
	}
}

func TestStoredRestartsThatCannotBeReadAreUnknownUntilTheNextSignal(t *testing.T) {
	d := bustest.Start(t)
	kit := bustest.NewPackageKit(d)
	env := Env{Bus: startBus(t, d), Runtime: t.TempDir()}
	write(t, env.Runtime+"/packagekit.json", "{")
	p := start(t, env, "packagekit", nil)
	if s := p.becomes("broken file", plan.Unknown); s.Err == nil {
		t.Error("no error")
	}
	bustest.Eventually(t, "the signal", func() bool {
		kit.RequireRestart(uint32(6), kernelPackage) // again: the match may not stand yet
		return p.state().Level == plan.Required
	})
	p.stop()
	start(t, env, "packagekit", nil).becomes("stored anew", plan.Required)
}

func TestARestartThatCannotBeStoredStillCounts(t *testing.T) {
	d := bustest.Start(t)
	kit := bustest.NewPackageKit(d)
	runtime := filepath.Join(t.TempDir(), "file")
	p := hearing(t, Env{Bus: startBus(t, d), Runtime: runtime}, kit)
	write(t, runtime, "")
	kit.RequireRestart(uint32(4), "apt-backend;;;")
	s := p.becomes("the signal", plan.Required)
	if !strings.Contains(s.Note, "forgotten when the agent restarts") || !slices.Equal(ids(s), []string{"apt-backend"}) {
		t.Errorf("state %+v", s)
	}
}

func TestPackageKitWithoutABusIsUnknownUnlessItHadRequiredARestart(t *testing.T) {
	runtime := t.TempDir()
	p := &packageKit{bus: bus.New(bus.Options{}), root: t.TempDir(), stored: runtime + "/packagekit.json"}
	if s := p.state(); s.Level != plan.Unknown || !errors.Is(s.Err, bus.ErrNotConnected) {
		t.Errorf("state %+v", s)
	}
	write(t, p.stored, `{"packages":[";;;"]}`)
	if s := p.state(); s.Level != plan.Required || !slices.Equal(ids(s), []string{"unknown"}) {
		t.Errorf("state %+v", s)
	}
}

func FuzzRestart(f *testing.F) {
	f.Add(uint32(4), kernelPackage, uint8(2), uint8(0))
	f.Fuzz(func(t *testing.T, restart uint32, id string, length, which uint8) {
		values := []any{restart, id, nil, []any{id}, int64(restart)}
		var body []any
		for i := range int(length % 5) {
			body = append(body, values[(i+int(which))%len(values)])
		}
		got, needed, err := parseRestart(body)
		if needed && (err != nil || body[0] != restart || restart != 4 && restart != 6) {
			t.Errorf("%v: needed, %v", body, err)
		}
		for _, r := range packageReasons([]string{got}) {
			if wrong := wrongText("ID", clean(r.ID, plan.MaxReasonID), plan.MaxReasonID); wrong != "" || r.ID == "" {
				t.Errorf("%q: %q: %s", id, r.ID, wrong)
			}
		}
	})
}

func FuzzRestarts(f *testing.F) {
	f.Add([]byte(`{"packages":["kernel;1;x86_64;installed"]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, content []byte) {
		packages, err := parseRestarts(content)
		if (len(packages) == 0) != (err != nil) || len(packages) > plan.MaxReasons {
			t.Errorf("%q and %v", packages, err)
		}
	})
}
