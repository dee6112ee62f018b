// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// rebootmgrPolicy is what versions up to 2 install, in substance: of what is used here only Status is for everybody.
const rebootmgrPolicy = `<policy context="default">
  <deny send_destination="org.opensuse.RebootMgr"/>
  <allow send_destination="org.opensuse.RebootMgr" send_interface="org.opensuse.RebootMgr" send_member="Status"/>
</policy>`

// varlinkStatus is an answer of rebootmgrd 3.
func varlinkStatus(parameters string) string { return `{"parameters":{` + parameters + "}}\x00" }

func TestARequestOfTheOldRebootmgrIsReadUnderItsOwnPolicy(t *testing.T) {
	d := bustest.StartPolicy(t, rebootmgrPolicy)
	manager := bustest.NewRebootMgr(d)
	manager.Set(2)
	p := start(t, Env{Bus: startBus(t, d)}, "rebootmgr", nil)
	s := p.becomes("waiting for its window", plan.Required)
	want := plan.Reason{Source: "rebootmgr", ID: "reboot", Text: "a reboot was requested of rebootmgr", Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	manager.Disconnect()
	if s := p.becomes("it left", plan.Unknown); !errors.Is(s.Err, errAbsent) {
		t.Errorf("error %v", s.Err)
	}
	manager.Set(0) // it remembers nothing
	manager.Connect()
	p.becomes("restarted", plan.NotRequired)
	d.Kill()
	p.becomes("the bus is away", plan.Unknown)
	manager.Set(1)
	d.Restart()
	manager.Connect()
	p.becomes("requested while the bus was away", plan.Required)
}

func TestARebootmgrThatIsNotThereIsAbsent(t *testing.T) {
	d := bustest.Start(t)
	p := start(t, Env{Bus: startBus(t, d)}, "rebootmgr", nil)
	if s := p.becomes("absent", plan.NotRequired); s.Note != "service absent" {
		t.Errorf("note %q", s.Note)
	}
	bustest.NewRebootMgr(d).Set(1)
	p.becomes("another owner", plan.NotRequired)
}

func TestAnAnswerOfRebootmgrThatMakesNoSenseIsUnknown(t *testing.T) {
	d := bustest.Start(t)
	manager := bustest.NewRebootMgr(d)
	b := startBus(t, d)
	manager.On("Status", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "no"))
	p := start(t, Env{Bus: b}, "rebootmgr", nil)
	if s := p.becomes("denied", plan.Unknown); !strings.Contains(fmt.Sprint(s.Err), "rebootmgr's own policy file") {
		t.Errorf("error %v", s.Err)
	}
	for _, body := range [][]any{{}, {"2"}, {int32(2)}, {uint32(2), uint32(2)}, {nil}} {
		if s, err := parseRebootmgr(body); err == nil {
			t.Errorf("%v gives %+v", body, s)
		}
	}
}

func TestTheNewRebootmgrIsAskedOverVarlinkAndSoftRebootsAreKnown(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		level  plan.Level
		id     string
		kind   plan.Kind
		note   string
	}{
		"nothing":  {varlinkStatus(`"RebootStatus":0,"RebootDisabled":false`), plan.NotRequired, "", 0, ""},
		"disabled": {varlinkStatus(`"RebootStatus":0,"RebootDisabled":true`), plan.NotRequired, "", 0, ""},
		"hard": {varlinkStatus(`"RebootStatus":2,"RequestedMethod":1,"RebootTime":"Fri 2026-11-27 03:30:00 CET"`),
			plan.Required, "reboot", plan.KindFull, "itself would reboot at Fri 2026-11-27 03:30:00 CET"},
		"soft": {varlinkStatus(`"RebootStatus":2,"RequestedMethod":2`), plan.Required, "soft-reboot", plan.KindSoft, ""},
		"soft, turned off": {varlinkStatus(`"RebootStatus":2,"RequestedMethod":2,"RebootTime":"x","RebootDisabled":true`),
			plan.Required, "soft-reboot", plan.KindSoft, "does not reboot until it is started again"},
		"another method": {varlinkStatus(`"RebootStatus":1,"RequestedMethod":9`), plan.Required, "reboot", plan.KindFull, ""},
		"no status":      {varlinkStatus(`"RequestedMethod":2`), plan.Unknown, "", 0, ""},
		"negative":       {varlinkStatus(`"RebootStatus":-1`), plan.Unknown, "", 0, ""},
		"too large":      {varlinkStatus(`"RebootStatus":1e30`), plan.Unknown, "", 0, ""},
		"refused":        {`{"error":"org.varlink.service.PermissionDenied"}` + "\x00", plan.Unknown, "", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := bustest.SocketDir(t)
			v := bustest.NewVarlink(t, filepath.Join(root, rebootmgrSocket))
			v.Answer(c.answer)
			// No bus is needed for it.
			s := start(t, Env{Bus: startBus(t, bustest.Start(t)), Root: root}, "rebootmgr", nil).becomes(name, c.level)
			if c.level == plan.Required && (len(s.Reasons) != 1 || s.Reasons[0].ID != c.id || s.Reasons[0].Kind != c.kind) {
				t.Errorf("reasons %+v", s.Reasons)
			}
			if !strings.Contains(s.Note, c.note) || (c.note == "") != (s.Note == "") {
				t.Errorf("note %q", s.Note)
			}
			if calls := v.Calls(); !slices.Contains(calls, "org.openSUSE.rebootmgr.Status") {
				t.Errorf("calls %v", calls)
			}
		})
	}
}

func TestAnUpgradeOfRebootmgrChangesTheWayItIsAsked(t *testing.T) {
	root := bustest.SocketDir(t)
	d := bustest.Start(t)
	old := bustest.NewRebootMgr(d)
	old.Set(2)
	p := start(t, Env{Bus: startBus(t, d), Root: root}, "rebootmgr", nil)
	p.becomes("version 2", plan.Required)
	v := bustest.NewVarlink(t, filepath.Join(root, rebootmgrSocket))
	v.Answer(varlinkStatus(`"RebootStatus":2,"RequestedMethod":2`))
	old.Disconnect() // its owner change is a hint
	p.shows("version 3", func(s State) bool { return slices.Equal(ids(s), []string{"soft-reboot"}) })
	v.Close()
	old.Set(0)
	old.Connect()
	p.becomes("version 2 again, beside the socket of 3", plan.NotRequired)
}

func TestRebootmgrIsAskedEveryMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir() // without a socket, and a bus that never comes
		f := follower{bus: bus.New(bus.Options{}), hint: newHints(), every: pollRebootmgr}
		reads := 0
		ctx, cancel := context.WithTimeout(t.Context(), waitBus+10*time.Minute+time.Second)
		defer cancel()
		err := f.run(ctx, func(context.Context) (State, error) { reads++; return State{}, nil }, func(State) {})
		if !errors.Is(err, context.DeadlineExceeded) || reads != 11 {
			t.Errorf("%d reads in ten minutes, %v", reads, err)
		}
		if _, err := (&rebootmgr{bus.New(bus.Options{}), root}).read(t.Context()); !errors.Is(err, bus.ErrNotConnected) {
			t.Errorf("error %v", err)
		}
	})
}

func FuzzRebootmgr(f *testing.F) {
	f.Add(uint32(2), "x", uint8(0))
	f.Fuzz(func(t *testing.T, status uint32, text string, which uint8) {
		bodies := [][]any{{status}, {text}, {}, {status, text}, {int32(status)}, {nil}}
		body := bodies[int(which)%len(bodies)]
		s, err := parseRebootmgr(body)
		if err == nil && (len(body) != 1 || (s.Level == plan.Required) != (body[0] != uint32(0))) {
			t.Errorf("%v gives %+v", body, s)
		}
	})
}
