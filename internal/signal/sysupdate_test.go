// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"errors"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// imageRoot is a host that booted version 41.
func imageRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write(t, root+"/etc/os-release", "ID=particle\nIMAGE_ID=particle\nIMAGE_VERSION=\"41\"\n")
	write(t, root+"/usr/lib/sysupdate.d/50-root.transfer", "[Transfer]\n")
	return root
}

func TestTheNewestInstalledVersionIsComparedWithTheBootedOne(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewSysupdate(d, "41")
	activation := d.Activatable(sysupdateName, service.Connect)
	p := start(t, Env{Bus: startBus(t, d), Root: imageRoot(t)}, "sysupdate", nil)
	if s := p.becomes("at start", plan.NotRequired); s.Note != "booted 41" {
		t.Errorf("note %q", s.Note)
	}
	service.Update("42")
	s := p.becomes("updated", plan.Required)
	want := plan.Reason{Source: "sysupdate", ID: "42", Text: "version 42 is installed, 41 is booted", Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	service.Disconnect()
	s = p.shows("it idled out", func(s State) bool { return strings.Contains(s.Note, "left the bus") })
	if s.Level != plan.Required || !slices.Equal(ids(s), []string{"42"}) {
		t.Errorf("state %+v", s)
	}
	service.Set("40")
	service.Connect()
	p.becomes("vacuumed", plan.NotRequired)
	service.Disconnect()
	p.shows("it idled out again", func(s State) bool { return s.Note == "service absent" })
	if n := activation.Started(); n != 1 {
		t.Errorf("it was started %d times, its exits included", n)
	}
}

func TestTheServiceIsStartedOnceInASlowTick(t *testing.T) {
	d := bustest.Start(t)
	b := bus.New(bus.Options{Address: d.Address})
	s := &sysupdate{bus: b}
	if s.mayStart() {
		t.Error("started without a bus")
	}
	bustest.Connect(t, b)
	if !s.mayStart() || s.mayStart() {
		t.Error("not once at the start")
	}
	s.started = time.Now().Add(-pollLevel)
	if !s.mayStart() || s.mayStart() {
		t.Error("not once a tick later")
	}
}

func TestAHostWithoutDefinitionsOrVersionDoesNotStartTheService(t *testing.T) {
	d := bustest.Start(t)
	activation := d.Activatable(sysupdateName, nil)
	b := startBus(t, d)
	none := imageRoot(t)
	remove(t, none+"/usr/lib/sysupdate.d")
	s := start(t, Env{Bus: b, Root: none}, "sysupdate", nil).becomes("no definitions", plan.NotRequired)
	if !strings.Contains(s.Note, "sysupdate.d") {
		t.Errorf("note %q", s.Note)
	}
	noVersion := imageRoot(t)
	write(t, noVersion+"/etc/os-release", "ID=debian\n")
	s = start(t, Env{Bus: b, Root: noVersion}, "sysupdate", nil).becomes("no version", plan.Unknown)
	if !strings.Contains(message(s.Err), "IMAGE_VERSION") {
		t.Errorf("error %v", s.Err)
	}
	remove(t, noVersion+"/etc/os-release")
	s = start(t, Env{Bus: b, Root: noVersion}, "sysupdate", nil).becomes("no os-release", plan.Unknown)
	if !strings.Contains(message(s.Err), "usr/lib/os-release") {
		t.Errorf("error %v", s.Err)
	}
	if n := activation.Started(); n != 0 {
		t.Errorf("the service was started %d times", n)
	}
}

func TestWhatSysupdatedAnswersInsteadOfAVersion(t *testing.T) {
	refuse := func(name string) bustest.Reply { return bustest.Refuse(name, "no") }
	for name, c := range map[string]struct {
		reply  bustest.Reply
		newest string
		want   plan.Level
		part   string // of the note or the error
	}{
		"no target":            {reply: refuse("org.freedesktop.DBus.Error.UnknownObject"), part: "no target"},
		"no installed version": {part: "no version is installed"},
		"downloaded only":      {reply: refuse("System.Error.EPROTO"), want: plan.Unknown, part: "EPROTO"},
		"gone before it spoke": {reply: bustest.Reply{HangUp: true}, part: "service absent"},
		"denied": {reply: refuse("org.freedesktop.DBus.Error.AccessDenied"), want: plan.Unknown,
			part: "install kured-agent's policy file"},
		"older than the booted": {newest: "9", part: "booted 41"},
	} {
		t.Run(name, func(t *testing.T) {
			d := bustest.Start(t)
			service := bustest.NewSysupdate(d, c.newest)
			service.On("GetVersion", c.reply)
			service.Connect()
			s := start(t, Env{Bus: startBus(t, d), Root: imageRoot(t)}, "sysupdate", nil).becomes(name, c.want)
			if !strings.Contains(s.Note+message(s.Err), c.part) {
				t.Errorf("state %+v", s)
			}
		})
	}
}

func TestAFailureOfSysupdatedHoldsUntilItIsStartedAgain(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewSysupdate(d, "42")
	service.On("GetVersion", bustest.Refuse("System.Error.EPROTO", "no"))
	service.Connect()
	b := bus.New(bus.Options{Address: d.Address})
	bustest.Connect(t, b)
	s := &sysupdate{bus: b, root: imageRoot(t)}
	for _, when := range []string{"there", "away"} {
		if _, err := s.read(t.Context()); !strings.Contains(message(err), "EPROTO") {
			t.Errorf("%s: error %v", when, err)
		}
		service.Disconnect()
	}
	service.On("GetVersion", bustest.Reply{})
	service.Connect()
	if state, err := s.read(t.Context()); err != nil || state.Level != plan.Required {
		t.Errorf("back: %+v, %v", state, err)
	}
	service.Disconnect()
	if _, err := s.read(t.Context()); !errors.Is(err, errAbsent) {
		t.Errorf("away again: error %v", err)
	}
}

func TestAWrongAnswerOfSysupdatedIsUnknown(t *testing.T) {
	d := bustest.Start(t)
	conn := d.Connect()
	wrong := map[string]any{"GetVersion": func() (int32, string, *dbus.Error) { return 42, "42", nil }}
	if err := conn.ExportMethodTable(wrong, sysupdateHost, sysupdateTarget); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(sysupdateName, 0); err != nil {
		t.Fatal(err)
	}
	s := start(t, Env{Bus: startBus(t, d), Root: imageRoot(t)}, "sysupdate", nil).becomes("wrong answer", plan.Unknown)
	if !strings.Contains(message(s.Err), "not one string") {
		t.Errorf("error %v", s.Err)
	}
}

func TestForgedJobsDoNotCount(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewSysupdate(d, "41")
	service.Connect()
	b := startBus(t, d)
	p := start(t, Env{Bus: b, Root: imageRoot(t)}, "sysupdate", nil)
	p.becomes("at start", plan.NotRequired)
	stranger := bustest.NewStranger(d)
	stranger.Forge(sysupdatePath, sysupdateName+".Manager.JobRemoved")
	stranger.Forge(sysupdatePath, sysupdateName+".Manager.JobRemoved", "x")
	bustest.Eventually(t, "the forgeries counted", func() bool { return b.Dropped() == 2 })
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

// The policy of systemd lets nobody but root ask for the version; ours, for the agent's user, comes after it.
func TestOurBusPolicyAllowsWhatTheOneOfSysupdatedDenies(t *testing.T) {
	const theirs = `<policy context="default"><deny send_destination="org.freedesktop.sysupdate1"/>` +
		`<allow send_destination="org.freedesktop.sysupdate1" send_interface="org.freedesktop.DBus.Properties" ` +
		`send_member="Get"/></policy>`
	file, err := os.ReadFile("../../packaging/dbus/org.kured.Agent1.conf")
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	ours := regexp.MustCompile(`(?s)<policy user="kured-agent">.*?</policy>`).FindString(string(file))
	ours = strings.Replace(ours, `"kured-agent"`, `"`+me.Username+`"`, 1)
	for policy, want := range map[string]plan.Level{theirs: plan.Unknown, ours + theirs: plan.Required} {
		d := bustest.StartPolicy(t, policy)
		bustest.NewSysupdate(d, "42").Connect()
		s := start(t, Env{Bus: startBus(t, d), Root: imageRoot(t)}, "sysupdate", nil).becomes("asked", want)
		if want == plan.Unknown && !strings.Contains(message(s.Err), "install kured-agent's policy file") {
			t.Errorf("error %v", s.Err)
		}
	}
}

func TestTheBootedVersionIsReadFromOsRelease(t *testing.T) {
	for content, want := range map[string]string{
		"":                                      "",
		"IMAGE_VERSION=41":                      "41",
		"A=1\nIMAGE_VERSION='41.2'\nB=2\n":      "41.2",
		"  IMAGE_VERSION=\"2024-11-05\"\n":      "2024-11-05",
		"IMAGE_VERSION=1\nIMAGE_VERSION=2\n":    "2",
		"#IMAGE_VERSION=1\nX_IMAGE_VERSION=2\n": "",
		"IMAGE_VERSION=\n":                      "",
		"IMAGE_VERSION=\"\x1b\"\n":              "",
	} {
		if got := parseImageVersion(content); got != want {
			t.Errorf("%q: got %q, want %q", content, got, want)
		}
	}
}

func TestSysupdateRestsOnHostsThatAreNoImage(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/usr/lib/systemd/systemd-sysupdated", "")
	if sysupdateInstalled(root) {
		t.Error("installed without definitions")
	}
	for _, file := range []string{"/etc/sysupdate.d/a.conf", "/run/sysupdate.d/a.transfer"} {
		write(t, root+file, "")
		if !sysupdateInstalled(root) {
			t.Errorf("not installed with %s", file)
		}
		remove(t, root+file)
	}
}

func FuzzImages(f *testing.F) {
	f.Add("42", "IMAGE_VERSION=41\n")
	f.Fuzz(func(t *testing.T, newest, content string) {
		booted := parseImageVersion(content)
		if wrong := wrongText("version", booted, plan.MaxReasonID); wrong != "" {
			t.Errorf("%q: %q: %s", content, booted, wrong)
		}
		s := compareImages(newest, booted)
		if s.Level == plan.Required && (newest == "" || newest == booted) {
			t.Errorf("%q after %q: %+v", newest, booted, s)
		}
		bound("sysupdate", s)
	})
}
