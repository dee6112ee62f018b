// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// caller calls the agent's object as a package's hook would.
func caller(d *bustest.Daemon) func(method string, args ...any) error {
	object := d.Connect().Object(agentName, agentPath)
	return func(method string, args ...any) error { return object.Call(agentIface+"."+method, 0, args...).Err }
}

func errorName(err error) string {
	var reply dbus.Error
	errors.As(err, &reply)
	return reply.Name
}

func serving(t *testing.T, d *bustest.Daemon, env Env) *probe {
	t.Helper()
	if env.Bus == nil {
		env.Bus = startBus(t, d)
	}
	p := start(t, env, "request", nil)
	p.shows("the name taken", func(s State) bool { return s.Level >= 0 && s.Note == "" })
	return p
}

func TestRequestsComeAndGo(t *testing.T) {
	d := bustest.Start(t)
	p := serving(t, d, Env{})
	p.becomes("at start", plan.NotRequired)
	call := caller(d)
	for _, c := range []struct {
		method string
		args   []any
		want   []string
	}{
		{"RequireReboot", []any{"kernel", "new kernel"}, []string{"kernel"}},
		{"RequireReboot", []any{"libc", ""}, []string{"kernel", "libc"}},
		{"RequireReboot", []any{"kernel", "newer kernel"}, []string{"kernel", "libc"}},
		{"ClearReboot", []any{"nothing"}, []string{"kernel", "libc"}},
		{"ClearReboot", []any{"kernel"}, []string{"libc"}},
		{"ClearReboot", []any{""}, nil},
	} {
		if err := call(c.method, c.args...); err != nil {
			t.Fatalf("%s%q: %v", c.method, c.args, err)
		}
		p.shows(fmt.Sprint(c.method, c.args), func(s State) bool {
			return slices.Equal(ids(s), c.want) && (s.Level == plan.Required) == (c.want != nil)
		})
	}
	if err := call("RequireReboot", "kernel", "text"); err != nil {
		t.Fatal(err)
	}
	s := p.becomes("again", plan.Required)
	want := plan.Reason{Source: "request", ID: "kernel", Text: "text", Kind: plan.KindFull}
	if s.Reasons[0] != want {
		t.Errorf("reason %+v", s.Reasons[0])
	}
}

func TestARequestRepeatedAThousandTimesIsOne(t *testing.T) {
	d := bustest.Start(t)
	p := serving(t, d, Env{})
	call := caller(d)
	for i := range 1000 {
		if err := call("RequireReboot", "kernel", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	p.shows("the last", func(s State) bool { return len(s.Reasons) == 1 && s.Reasons[0].Text == "999" })
}

func TestBadRequestsAreRefused(t *testing.T) {
	d := bustest.Start(t)
	p := serving(t, d, Env{})
	call := caller(d)
	const invalid = "org.freedesktop.DBus.Error.InvalidArgs"
	for _, args := range [][]any{
		{"", "no id"}, {strings.Repeat("x", plan.MaxReasonID+1), ""}, {"id", strings.Repeat("x", plan.MaxReasonText+1)},
		{"a\nb", ""}, {"id", "\x1b[2J"}, {"id", "\u202egnp"}, {int32(65), int32(66)}, {"id"}, {}, {"id", int32(1)},
		{"id", "reason", "more"},
	} {
		if err := call("RequireReboot", args...); errorName(err) != invalid {
			t.Errorf("RequireReboot%q: %v", args, err)
		}
	}
	if err := call("ClearReboot", int32(1)); errorName(err) != invalid {
		t.Errorf("ClearReboot(1): %v", err)
	}
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
	for i := range plan.MaxReasons {
		if err := call("RequireReboot", fmt.Sprint(i), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := call("RequireReboot", "one too many", ""); errorName(err) != "org.freedesktop.DBus.Error.LimitsExceeded" {
		t.Errorf("one too many: %v", err)
	}
	if err := call("RequireReboot", "0", "known ids still change"); err != nil {
		t.Errorf("a known id: %v", err)
	}
}

func TestRequestsOutliveTheBusAndTheAgent(t *testing.T) {
	d := bustest.Start(t)
	env := Env{Bus: startBus(t, d), Runtime: t.TempDir()}
	p := serving(t, d, env)
	if err := caller(d)("RequireReboot", "kernel", "new <kernel> & more"); err != nil {
		t.Fatal(err)
	}
	p.becomes("asked", plan.Required)
	d.Kill()
	p.shows("the bus is away", func(s State) bool { return s.Level == plan.Required && s.Note != "" })
	d.Restart()
	p.shows("the bus is back", func(s State) bool { return s.Level == plan.Required && s.Note == "" })
	if err := caller(d)("RequireReboot", "libc", ""); err != nil {
		t.Fatal(err)
	}
	p.shows("asked again", func(s State) bool { return len(s.Reasons) == 2 })
	p.stop()
	if err := caller(d)("RequireReboot", "late", ""); err == nil {
		t.Error("a source that ended still takes requests")
	}
	file := filepath.Join(env.Runtime, "requests.json")
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	again := serving(t, d, env)
	s := again.becomes("another agent", plan.Required)
	if !slices.Equal(ids(s), []string{"kernel", "libc"}) || s.Reasons[0].Text != "new <kernel> & more" {
		t.Errorf("reasons %+v", s.Reasons)
	}
	if err := caller(d)("ClearReboot", ""); err != nil {
		t.Fatal(err)
	}
	again.becomes("cleared", plan.NotRequired)
}

func TestARequestThatCannotBeStoredIsRefused(t *testing.T) {
	d := bustest.Start(t)
	runtime := filepath.Join(t.TempDir(), "file")
	p := serving(t, d, Env{Runtime: runtime})
	if err := os.WriteFile(runtime, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := caller(d)("RequireReboot", "kernel", ""); errorName(err) != "org.freedesktop.DBus.Error.Failed" {
		t.Errorf("RequireReboot: %v", err)
	}
	if s := p.state(); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

func TestStoredRequestsThatCannotBeReadAreUnknown(t *testing.T) {
	d := bustest.Start(t)
	env := Env{Runtime: t.TempDir()}
	write(t, filepath.Join(env.Runtime, "requests.json"), `[{"id":""}]`)
	p := serving(t, d, env)
	if s := p.becomes("broken file", plan.Unknown); s.Err == nil {
		t.Error("no error")
	}
	if err := caller(d)("ClearReboot", ""); err != nil {
		t.Fatal(err)
	}
	p.becomes("cleared", plan.NotRequired)
}

func TestATakenNameIsShown(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewService(d, agentName)
	p := start(t, Env{Bus: startBus(t, d)}, "request", nil)
	p.shows("the note", func(s State) bool {
		return s.Level == plan.NotRequired && strings.Contains(s.Note, "belongs to another process")
	})
}

func TestOnlyRootAndTheAgentsUserMayAsk(t *testing.T) {
	r := &requests{bus: startBus(t, bustest.Start(t))}
	// The connection of a caller that left: who it was can't be told any more, so it is nobody.
	<-r.bus.Ready()
	msg := dbus.Message{Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldSender: dbus.MakeVariant(":1.999"), dbus.FieldSignature: dbus.MakeVariant(dbus.SignatureOf("")),
	}}
	if err := r.admit(msg, "s"); err == nil || err.Name != "org.freedesktop.DBus.Error.AccessDenied" {
		t.Errorf("admit = %v", err)
	}
}

func FuzzRequests(f *testing.F) {
	f.Add([]byte(`[{"id":"kernel","reason":"new"}]`))
	f.Add([]byte(`{"id":1}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		list, err := parseRequests(content)
		if err != nil {
			return
		}
		again, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parseRequests(again); err != nil || !slices.Equal(back, list) {
			t.Errorf("%v came back as %v, %v", list, back, err)
		}
	})
}
