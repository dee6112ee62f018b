// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

func TestAnUpdateThatWasReadyBeforeTheStartIsRead(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewUpdateEngine(d).Set(needReboot, "4593.2.0")
	s := start(t, Env{Bus: startBus(t, d)}, "update-engine", nil).becomes("at start", plan.Required)
	want := plan.Reason{Source: "update-engine", ID: "4593.2.0", Text: "Flatcar update 4593.2.0 is installed",
		Kind: plan.KindFull}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
}

func TestStatusUpdatesAreFollowed(t *testing.T) {
	d := bustest.Start(t)
	engine := bustest.NewUpdateEngine(d)
	p := start(t, Env{Bus: startBus(t, d)}, "update-engine", nil)
	p.becomes("idle", plan.NotRequired)
	for range 1000 {
		engine.Status("UPDATE_STATUS_DOWNLOADING", "4593.2.0")
	}
	engine.Status(needReboot, "4593.2.0")
	p.becomes("ready", plan.Required)
	engine.Connect() // after its own restart it no longer knows the version
	engine.Status(needReboot, unknownVersion)
	p.shows("restarted", func(s State) bool { return slices.Equal(ids(s), []string{"update"}) })
	engine.Status("UPDATE_STATUS_IDLE", unknownVersion)
	p.becomes("reset", plan.NotRequired)
}

func TestAForgedStatusUpdateDoesNotCount(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewUpdateEngine(d)
	b := startBus(t, d)
	p := start(t, Env{Bus: b}, "update-engine", nil)
	p.becomes("idle", plan.NotRequired)
	stranger := bustest.NewStranger(d)
	stranger.Forge(updatePath, updateIface+".StatusUpdate", int64(0), 0.0, needReboot, "1", int64(0))
	stranger.Forge(updatePath, updateIface+".StatusUpdate")
	bustest.Eventually(t, "the forgeries counted", func() bool { return b.Dropped() == 2 })
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

func TestAnEngineThatComesLateOrWhileTheBusWasAwayIsRead(t *testing.T) {
	d := bustest.Start(t)
	p := start(t, Env{Bus: startBus(t, d)}, "update-engine", nil)
	if s := p.becomes("absent", plan.NotRequired); s.Note != "service absent" {
		t.Errorf("note %q", s.Note)
	}
	engine := bustest.NewUpdateEngine(d)
	p.shows("idle", func(s State) bool { return s.Note == "UPDATE_STATUS_IDLE" })
	d.Kill()
	p.becomes("the bus is away", plan.Unknown)
	engine.Set(needReboot, "2")
	d.Restart()
	engine.Connect()
	p.becomes("back", plan.Required)
}

func TestADeniedStatusIsUnknownAndNamesTheWayOut(t *testing.T) {
	// The default part of Flatcar's own policy: nobody but root and core may ask.
	d := bustest.StartPolicy(t,
		`<policy context="default"><deny send_destination="com.coreos.update1" `+
			`send_interface="com.coreos.update1.Manager"/></policy>`)
	bustest.NewUpdateEngine(d)
	p := start(t, Env{Bus: startBus(t, d)}, "update-engine", nil)
	s := p.becomes("denied", plan.Unknown)
	if !strings.Contains(fmt.Sprint(s.Err), "the bus policy denies GetStatus: install kured-agent's policy file") {
		t.Errorf("error %v", s.Err)
	}
}

func FuzzStatus(f *testing.F) {
	f.Add(needReboot, "1", uint8(5), uint8(0))
	f.Fuzz(func(t *testing.T, operation, version string, length, which uint8) {
		values := []any{int64(1), 0.5, operation, version, int64(2)}
		var body []any
		for i := range int(length % 7) {
			body = append(body, values[(i+int(which))%len(values)])
		}
		s, err := parseStatus(body)
		if err == nil && s.Level == plan.Required && body[2] != needReboot {
			t.Errorf("required by %v", body)
		}
		bound("update-engine", s)
	})
}
