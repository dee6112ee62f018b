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

const changed = updater + ".Changed"

var needRebootSignal = map[string]any{
	"name": updater, "path": updaterPath, "interface": updater, "signal": "Changed", "argument": int64(1),
	"equals": "NEED_REBOOT",
}

// listening starts the source and returns once it hears signals.
func listening(t *testing.T, env Env, service *bustest.Service) *probe {
	t.Helper()
	p := start(t, env, "dbus-signal", needRebootSignal)
	p.becomes("at start", plan.NotRequired)
	bustest.Eventually(t, "the match", func() bool {
		service.Emit(updaterPath, changed, int32(0), "IDLE")
		return p.state().Note == ""
	})
	return p
}

// hears emits the signal until the source requires a reboot: a first one may come before the match stands.
func hears(t *testing.T, p *probe, service *bustest.Service, body ...any) State {
	t.Helper()
	bustest.Eventually(t, "the signal", func() bool {
		service.Emit(updaterPath, changed, body...)
		return p.state().Level == plan.Required
	})
	return p.state()
}

func TestALevelFollowsTheLastSignal(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	p := start(t, Env{Bus: startBus(t, d)}, "dbus-signal", needRebootSignal)
	if s := p.becomes("at start", plan.NotRequired); s.Note != "no signal yet" {
		t.Errorf("note %q", s.Note)
	}
	s := hears(t, p, service, int32(1), "NEED_REBOOT")
	want := plan.Reason{
		Source: "dbus-signal:com.example.Updater.Changed", ID: "Changed=NEED_REBOOT",
		Text: "com.example.Updater sent Changed with NEED_REBOOT", Kind: plan.KindFull,
	}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	service.Emit(updaterPath, changed, int32(1), "IDLE")
	p.becomes("another argument", plan.NotRequired)
}

func TestAThousandSignalsEndInTheLastOne(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	p := listening(t, Env{Bus: startBus(t, d)}, service)
	for range 1000 {
		service.Emit(updaterPath, changed, int32(1), "NEED_REBOOT")
	}
	p.becomes("a thousand times", plan.Required)
	for i := range 2000 {
		service.Emit(updaterPath, changed, int32(i), []string{"NEED_REBOOT", "IDLE"}[i%2])
	}
	p.becomes("2000 signals that end in IDLE", plan.NotRequired)
	service.Emit(updaterPath, changed, int32(1), "NEED_REBOOT")
	p.becomes("one more", plan.Required)
}

func TestMalformedSignalsChangeNothingAndAreCounted(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	p := listening(t, Env{Bus: startBus(t, d)}, service)
	service.Emit(updaterPath, changed, int32(1), "NEED_REBOOT")
	p.becomes("the signal", plan.Required)
	for _, body := range [][]any{{}, {int32(1)}, {"x", int32(7)}, {"x", []string{"NEED_REBOOT"}}} {
		service.Emit(updaterPath, changed, body...)
	}
	s := p.shows("four counted", func(s State) bool { return s.Note == "4 malformed signals ignored" })
	if s.Level != plan.Required {
		t.Errorf("level %v", s.Level)
	}
}

func TestForgedSignalsChangeNothing(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	b := startBus(t, d)
	p := listening(t, Env{Bus: b}, service)
	stranger := bustest.NewStranger(d)
	bodies := [][]any{{int32(1), "NEED_REBOOT"}, {}, {"x", int32(7)}}
	for _, body := range bodies {
		stranger.Forge(updaterPath, changed, body...)
	}
	bustest.Eventually(t, "the unicast ones counted", func() bool { return b.Dropped() == uint64(len(bodies)) })
	service.Emit(updaterPath, changed, int32(1), "IDLE")
	if s := p.state(); s.Level != plan.NotRequired || s.Note != "" {
		t.Errorf("state %+v", s)
	}
	service.Disconnect()
	stranger.Forge(updaterPath, changed, int32(1), "NEED_REBOOT") // the name is without an owner: nobody may speak for it
	bustest.Eventually(t, "that one counted too", func() bool { return b.Dropped() == uint64(len(bodies))+1 })
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

func TestALevelOutlivesItsServiceTheBusAndTheAgent(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	env := Env{Bus: startBus(t, d), Runtime: t.TempDir()}
	p := listening(t, env, service)
	service.Emit(updaterPath, changed, int32(1), "NEED_REBOOT")
	p.becomes("the signal", plan.Required)

	service.Connect()
	bustest.Eventually(t, "the new owner read", func() bool { return p.state().Level == plan.Required })

	d.Kill()
	if s := p.becomes("the bus is away", plan.Unknown); !errors.Is(s.Err, bus.ErrNotConnected) {
		t.Errorf("error %v", s.Err)
	}
	d.Restart()
	p.becomes("the bus is back", plan.Required)

	p.stop()
	again := start(t, env, "dbus-signal", needRebootSignal)
	again.becomes("another agent", plan.Required)
	service.Connect()
	bustest.Eventually(t, "IDLE heard", func() bool {
		service.Emit(updaterPath, changed, int32(1), "IDLE")
		return again.state().Level == plan.NotRequired
	})

	other := map[string]any{"equals": "IDLE"}
	for k, v := range needRebootSignal {
		if k != "equals" {
			other[k] = v
		}
	}
	if newBroadcast(other, env).stored == newBroadcast(needRebootSignal, env).stored {
		t.Error("another meaning of the signal inherits the level")
	}
}

func TestAServiceThatRestartsAndSignalsAtOnceIsHeard(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	p := listening(t, Env{Bus: startBus(t, d)}, service)
	for range 10 {
		service.Connect()
		service.Emit(updaterPath, changed, int32(1), "NEED_REBOOT")
		p.becomes("required", plan.Required)
		service.Connect()
		service.Emit(updaterPath, changed, int32(1), "IDLE")
		p.becomes("idle", plan.NotRequired)
	}
}

func TestWithoutAnArgumentAnySignalRequiresAReboot(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	p := start(t, Env{Bus: startBus(t, d)}, "dbus-signal", map[string]any{
		"name": updater, "path": updaterPath, "interface": updater, "signal": "Changed",
	})
	p.becomes("at start", plan.NotRequired)
	if s := hears(t, p, service); !slices.Equal(ids(s), []string{"Changed"}) {
		t.Errorf("reasons %v", s.Reasons)
	}
}

func TestAStoredLevelThatCannotBeReadIsUnknownUntilTheNextSignal(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	env := Env{Bus: startBus(t, d), Runtime: t.TempDir()}
	write(t, newBroadcast(needRebootSignal, env).stored, "{")
	p := start(t, env, "dbus-signal", needRebootSignal)
	if s := p.becomes("broken file", plan.Unknown); s.Err == nil {
		t.Error("no error")
	}
	hears(t, p, service, int32(1), "NEED_REBOOT")
}

func TestALevelThatCannotBeStoredStillCounts(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewService(d, updater)
	runtime := filepath.Join(t.TempDir(), "file")
	env := Env{Bus: startBus(t, d), Runtime: runtime}
	p := start(t, env, "dbus-signal", needRebootSignal)
	p.becomes("at start", plan.NotRequired)
	if err := os.WriteFile(runtime, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s := hears(t, p, service, int32(1), "NEED_REBOOT"); !strings.Contains(s.Note, "forgotten when the agent restarts") {
		t.Errorf("note %q", s.Note)
	}
}

func FuzzHear(f *testing.F) {
	f.Add("NEED_REBOOT", int32(1), uint8(2), uint8(1))
	f.Fuzz(func(t *testing.T, s string, n int32, length, which uint8) {
		b := newBroadcast(needRebootSignal, Env{Bus: bus.New(bus.Options{})})
		values := []any{s, n, nil, []any{s}, map[string]string{s: s}}
		var body []any
		for i := range int(length % 6) {
			body = append(body, values[(i+int(which))%len(values)])
		}
		b.hear(body)
		understood := len(body) > 1 && fmt.Sprintf("%T", body[1]) == "string"
		if (b.heard != nil) != understood || (b.malformed == 1) == understood {
			t.Errorf("body %v: heard %v, malformed %d", body, b.heard, b.malformed)
		}
		if b.heard != nil && b.heard.Required != (body[1] == "NEED_REBOOT") {
			t.Errorf("body %v: %v", body, *b.heard)
		}
	})
}

func FuzzLastSignal(f *testing.F) {
	f.Add([]byte(`{"required":true}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, content []byte) {
		if last, err := parseLastSignal(content); (last == nil) != (err != nil) {
			t.Errorf("%v and %v", last, err)
		}
	})
}
