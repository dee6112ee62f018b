// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// rpmOstreePolicy is what rpm-ostree ships for everybody but root.
const rpmOstreePolicy = `<policy context="default"><deny send_destination="org.projectatomic.rpmostree1"/>` +
	`<allow send_destination="org.projectatomic.rpmostree1" send_interface="org.freedesktop.DBus.Properties" ` +
	`send_member="Get"/></policy>`

var (
	running = bustest.Deployment{Checksum: oldCommit, Version: "41.1", Booted: true}
	updated = bustest.Deployment{Checksum: newCommit, Version: "41.2", Staged: true}
	written = bustest.Deployment{Checksum: newCommit, Version: "41.2"}
)

func TestADeploymentThatRPMOstreeStagedIsReadUnderItsOwnPolicy(t *testing.T) {
	d := bustest.StartPolicy(t, rpmOstreePolicy)
	bustest.NewRPMOstree(d, updated, running)
	root := t.TempDir()
	stage(t, root, "update")
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rpm-ostree", nil)
	s := p.shows("with its version", func(s State) bool { return strings.Contains(fmt.Sprint(s.Reasons), "41.2") })
	want := plan.Reason{Source: "rpm-ostree", ID: newCommit, Text: "rpm-ostree deployment 41.2 a1b2c3d4a1b2 is staged",
		Kind: plan.KindFull}
	if s.Level != plan.Required || !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("state %+v", s)
	}
}

func TestDeploymentsAreFollowed(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRPMOstree(d, running)
	root := t.TempDir()
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rpm-ostree", nil)
	p.becomes("at start", plan.NotRequired)
	service.Deploy(written, running)
	s := p.becomes("written to the boot loader", plan.Required)
	if want := "rpm-ostree deployment 41.2 a1b2c3d4a1b2 is the next to boot"; s.Reasons[0].Text != want {
		t.Errorf("text %q", s.Reasons[0].Text)
	}
	service.Deploy(running, written)
	p.becomes("rolled back", plan.NotRequired)
	again := running
	again.Booted, again.Serial = false, 1
	service.Deploy(again, running)
	p.shows("other kernel arguments", func(s State) bool { return slices.Equal(ids(s), []string{oldCommit + ".1"}) })
	service.Deploy(running)
	p.becomes("cleaned up", plan.NotRequired)
}

func TestALockThatTheServiceMissesCounts(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRPMOstree(d, updated, running) // without "finalization-locked"
	root := t.TempDir()
	stage(t, root, "locked")
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rpm-ostree", nil)
	locked := func(s State) bool { return s.Level == plan.NotRequired && s.Note == lockedNote }
	p.shows("locked in the file", locked)
	stage(t, root, "update")
	p.becomes("unlocked", plan.Required)
	write(t, filepath.Join(root, ostreeLocked), "") // as zincati does while it waits for its turn
	p.shows("locked by the older file", locked)
	older := bustest.Deployment{Checksum: strings.Repeat("9", 64), Version: "40.9"}
	service.Deploy(updated, older, running)
	s := p.becomes("a rollback is queued below the lock", plan.Required)
	if !slices.Equal(ids(s), []string{older.Checksum}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
}

func TestWhatTheServiceSaidHoldsWhileItIdles(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRPMOstree(d, written, running)
	activation := d.Activatable(rpmOstreeName, service.Connect)
	root := t.TempDir()
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rpm-ostree", nil)
	p.becomes("written to the boot loader", plan.Required)
	gone := p.reports()
	service.Disconnect()
	bustest.Eventually(t, "a read without the service", func() bool { return p.reports() > gone })
	if s := p.state(); s.Level != plan.Required || !slices.Equal(ids(s), []string{newCommit}) {
		t.Errorf("idle: %+v", s)
	}
	stage(t, root, "kargs") // by bootc or ostree, which do not wake the service
	p.shows("staged meanwhile", func(s State) bool { return slices.Equal(ids(s), []string{oldCommit + ".1"}) })
	service.Set(running)
	remove(t, filepath.Join(root, ostreeStaged))
	service.Connect()
	p.becomes("back, and cleaned up", plan.NotRequired)
	if n := activation.Started(); n > 0 {
		t.Errorf("started %d times", n)
	}
}

func TestAServiceThatIdlesAtTheStartIsStartedOnce(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRPMOstree(d, written, running)
	service.Disconnect()
	activation := d.Activatable(rpmOstreeName, service.Connect)
	root := t.TempDir()
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rpm-ostree", nil)
	p.becomes("started", plan.Required)
	for i := range 3 {
		service.Disconnect()
		stage(t, root, "update")
		p.shows("staged", func(s State) bool { return strings.Contains(fmt.Sprint(s.Reasons), "is staged") })
		remove(t, filepath.Join(root, ostreeStaged))
		p.shows("discarded", func(s State) bool { return strings.Contains(fmt.Sprint(s.Reasons), "is the next to boot") })
		if n := activation.Started(); n != 1 {
			t.Errorf("round %d: started %d times", i, n)
		}
	}
}

func TestAStagedDeploymentIsSeenWithoutABus(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRPMOstree(d, running)
	activation := d.Activatable(rpmOstreeName, service.Connect)
	root := t.TempDir()
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rpm-ostree", nil)
	p.becomes("at start", plan.NotRequired)
	d.Kill()
	p.becomes("the bus is away", plan.Unknown)
	stage(t, root, "update")
	p.becomes("staged", plan.Required)
	remove(t, filepath.Join(root, ostreeStaged))
	p.becomes("discarded: is there anything else?", plan.Unknown)
	service.Set(written, running)
	d.Restart()
	p.becomes("the bus is back", plan.Required)
	if n := activation.Started(); n != 1 {
		t.Errorf("started %d times", n)
	}
}

func TestAHostWhoseServiceCannotBeStartedIsToldAbsent(t *testing.T) {
	d := bustest.Start(t)
	root := t.TempDir()
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rpm-ostree", nil)
	p.shows("nothing there", func(s State) bool { return s.Level == plan.NotRequired && s.Note == errAbsent.Error() })
	stage(t, root, "update")
	p.becomes("staged", plan.Required)
}

func TestADeniedOrBrokenServiceIsUnknown(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRPMOstree(d, running)
	service.On("Get", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "no"))
	p := start(t, Env{Bus: startBus(t, d)}, "rpm-ostree", nil)
	says := func(part string) func(State) bool {
		return func(s State) bool { return s.Level == plan.Unknown && strings.Contains(fmt.Sprint(s.Err), part) }
	}
	p.shows("denied", says("the bus policy denies reading Deployments"))
	service.On("Get", bustest.Reply{})
	service.Deploy()
	p.shows("no deployment", says("none is booted"))
	service.Deploy(bustest.Deployment{Checksum: newCommit, Version: "41.2"})
	p.shows("none booted", says("none is booted"))
	service.Deploy(bustest.Deployment{Checksum: "?", Booted: true})
	p.shows("no checksum", says("number 0 has no name"))
	service.ChangeProperty(rpmOstreePath, rpmOstreeIface, "Deployments", []string{newCommit})
	p.shows("wrong type", says("not a list of dictionaries"))
	service.Deploy(running)
	p.becomes("well again", plan.NotRequired)
}

func TestAStagedDeploymentThatCannotBeReadIsTakenFromTheService(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRPMOstree(d, updated, running)
	root := t.TempDir()
	write(t, filepath.Join(root, ostreeStaged), "nonsense")
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rpm-ostree", nil)
	p.becomes("staged", plan.Required)
	locked := updated
	locked.Locked = true
	service.Deploy(locked, running)
	p.shows("locked", func(s State) bool { return s.Level == plan.NotRequired && s.Note == lockedNote })
	service.Disconnect()
	p.becomes("idle", plan.Unknown)
}

func TestAForgedChangeOfTheDeploymentsDoesNotCount(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewRPMOstree(d, running)
	b := startBus(t, d)
	p := start(t, Env{Bus: b}, "rpm-ostree", nil)
	p.becomes("at start", plan.NotRequired)
	stranger := bustest.NewStranger(d)
	stranger.Forge(rpmOstreePath, "org.freedesktop.DBus.Properties.PropertiesChanged", rpmOstreeIface,
		map[string]dbus.Variant{"Deployments": dbus.MakeVariant([]string{})}, []string{})
	stranger.Forge(rpmOstreePath, "org.freedesktop.DBus.Properties.PropertiesChanged")
	bustest.Eventually(t, "the forgery counted", func() bool { return b.Dropped() >= 1 })
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

func FuzzDeployments(f *testing.F) {
	f.Add(newCommit, "41.2", int32(0), uint8(0b0010), uint8(1))
	f.Add(oldCommit, "", int32(1), uint8(0b0101), uint8(2))
	f.Fuzz(func(t *testing.T, checksum, version string, serial int32, flags, shape uint8) {
		dict := map[string]dbus.Variant{
			"checksum": dbus.MakeVariant(checksum), "version": dbus.MakeVariant(version),
			"serial": dbus.MakeVariant(serial), "booted": dbus.MakeVariant(flags&1 != 0),
			"staged": dbus.MakeVariant(flags&2 != 0), "finalization-locked": dbus.MakeVariant(flags&4 != 0),
		}
		for i, key := range []string{"checksum", "version", "serial", "booted", "staged", "finalization-locked"} {
			if shape&(1<<i) != 0 {
				dict[key] = dbus.MakeVariant([]string{checksum})
			}
		}
		old := map[string]dbus.Variant{
			"checksum": dbus.MakeVariant(oldCommit), "serial": dbus.MakeVariant(int32(0)),
			"booted": dbus.MakeVariant(flags&8 != 0), "staged": dbus.MakeVariant(flags&16 != 0),
		}
		list, err := parseDeployments([]any{dbus.MakeVariant([]map[string]dbus.Variant{dict, old})})
		if err != nil {
			return
		}
		staged := stagedOf(list)
		if staged != nil {
			staged.locked = true
		}
		s, err := nextBoot(list, staged)
		if err == nil && s.Level == plan.Required && list[0].booted {
			t.Errorf("%+v says %+v", list, s)
		}
		bound("rpm-ostree", s)
	})
}
