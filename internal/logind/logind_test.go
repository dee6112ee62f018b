// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

func client(t *testing.T, d *bustest.Daemon) *Client {
	t.Helper()
	b := bus.New(bus.Options{Address: d.Address})
	bustest.Connect(t, b)
	return New(b)
}

func classOf(t *testing.T, err error) Class {
	t.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("%v is not a RefusedError", err)
	}
	return refused.Class
}

var apt = bustest.Inhibitor{What: "shutdown:sleep", Who: "apt", Why: "Package manager running", Mode: "block", PID: 123}

func TestTheFlagsAreThoseOfTheHeaderAndInhibitorsAreNeverSkipped(t *testing.T) {
	if flagSoft != 4 || flagKexec != 2 || flagSkipInhibitors != 16 {
		t.Errorf("soft %d, kexec %d, skip %d", flagSoft, flagKexec, flagSkipInhibitors)
	}
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	if err := c.Reboot(t.Context(), plan.KindFull); err != nil {
		t.Fatal(err)
	}
	if err := c.Reboot(t.Context(), 0); classOf(t, err) != Other {
		t.Errorf("no kind: %v", err)
	}
	login.SetInhibitors(apt)
	login.On("RebootWithFlags",
		bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "Access denied due to active block inhibitor"))
	_ = c.Reboot(t.Context(), plan.KindFull)
	for _, call := range login.Calls("RebootWithFlags") {
		if call.Args[0] != uint64(0) {
			t.Errorf("flags %v were sent", call.Args[0])
		}
	}
	if n := len(login.Calls("RebootWithFlags")); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
	if n := len(login.Calls("Reboot")); n != 0 {
		t.Errorf("%d calls of the old method", n)
	}
}

func TestAnOldLogindIsAskedByTheOldMethod(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	login.Old()
	c, setVersion := client(t, d), systemd(d)
	if err := c.Reboot(t.Context(), plan.KindFull); err != nil {
		t.Fatal(err)
	}
	if calls := login.Calls("Reboot"); len(calls) != 1 || calls[0].Args[0] != false {
		t.Errorf("calls %v", calls)
	}
	login.On("Reboot",
		bustest.Refuse("org.freedesktop.login1.OperationInProgress", "There's already a shutdown in progress"))
	if err := c.Reboot(t.Context(), plan.KindFull); classOf(t, err) != InProgress {
		t.Errorf("Reboot = %v", err)
	}
	login.On("Reboot", bustest.Reply{})
	login.SetUser() // who is denied the new method by the bus, and does not hear that there is none
	for _, x := range []struct {
		version any
		want    Class
	}{{"247.3-7+deb11u8", fine}, {"248", NoPolicy}, {"", NoPolicy}} {
		setVersion(x.version)
		if err := c.Reboot(t.Context(), plan.KindFull); classOrFine(t, err) != x.want {
			t.Errorf("version %q: %v", x.version, err)
		}
	}
}

func TestRefusalsAreClassified(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	for _, x := range []struct {
		name, message string
		inhibitors    []bustest.Inhibitor
		want          Class
	}{
		{accessDenied, "Access denied", []bustest.Inhibitor{apt}, Inhibited},
		{accessDenied, "Access denied due to active block inhibitor", nil, Inhibited},
		{accessDenied, "Permission denied", nil, NoPolicy},
		{accessDenied, "Permission denied",
			[]bustest.Inhibitor{{What: "shutdown", Who: "kubelet", Mode: "delay"}}, NoPolicy},
		{accessDenied, "Permission denied", []bustest.Inhibitor{{What: "sleep", Who: "x", Mode: "block"}}, NoPolicy},
		{"org.freedesktop.login1.BlockedByInhibitorLock", "Operation denied due to active block inhibitor", nil, Inhibited},
		{std + "InteractiveAuthorizationRequired", "Interactive authentication required.", nil, NotAuthorized},
		{std + "InteractiveAuthorizationRequired", "Interactive authentication required.",
			[]bustest.Inhibitor{apt}, Inhibited},
		{"org.freedesktop.login1.OperationInProgress", "already", nil, InProgress},
		{std + "ServiceUnknown", "gone", nil, Unavailable},
		{std + "NameHasNoOwner", "gone", nil, Unavailable},
		{std + "TimedOut", "Failed to activate service 'org.freedesktop.login1': timed out", nil, Unavailable},
		{std + "Spawn.ChildExited", "exited", nil, Unavailable},
		{std + "NoReply", "no reply", nil, Ambiguous},
		{std + "Timeout", "Connection timed out", nil, Ambiguous},
		{std + "Disconnected", "Disconnected from message bus", nil, Ambiguous},
		{accessDenied, "Rejected send message, 2 matched rules", nil, NoPolicy},
		{std + "NotSupported", "Operation not supported", nil, Other},
		{"org.freedesktop.systemd1.UnitMasked", "Unit reboot.target is masked.", nil, Other},
		{invalidArgs, "bad", nil, Other},
		{"com.example.Never.Seen", "", nil, Other},
		{"com.example.Never.Seen", "inhibitor", []bustest.Inhibitor{apt}, Other},
	} {
		login.SetInhibitors(x.inhibitors...)
		login.On("RebootWithFlags", bustest.Refuse(x.name, x.message))
		err := c.Reboot(t.Context(), plan.KindFull)
		if got := classOf(t, err); got != x.want {
			t.Errorf("%s %q: class %q, want %q", x.name, x.message, got, x.want)
		}
		var reply dbus.Error
		if !errors.As(err, &reply) || reply.Name != x.name {
			t.Errorf("%v does not hold the answer", err)
		}
		if x.want == Inhibited && len(x.inhibitors) > 0 &&
			!strings.Contains(err.Error(), `"apt" (pid 123, uid 0): "Package manager running"`) {
			t.Errorf("%v does not name the holder", err)
		}
	}
}

func TestAnAbsentLogindIsUnavailable(t *testing.T) {
	d := bustest.Start(t)
	c := client(t, d)
	if err := c.Reboot(t.Context(), plan.KindFull); classOf(t, err) != Unavailable {
		t.Errorf("no logind: %v", err)
	}
	if _, err := c.PreparingForShutdown(t.Context()); err == nil {
		t.Error("PreparingForShutdown without logind has no error")
	}
	d.Kill()
	bustest.Eventually(t, "the loss", func() bool { return !c.bus.Connected() })
	if err := c.Reboot(t.Context(), plan.KindFull); classOf(t, err) != Unavailable {
		t.Errorf("no bus: %v", err)
	}
}

func TestARebootWithoutAnAnswerIsAmbiguous(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)

	login.On("RebootWithFlags", bustest.Reply{HangUp: true})
	if err := c.Reboot(t.Context(), plan.KindFull); classOf(t, err) != Ambiguous {
		t.Errorf("logind hung up: %v", err)
	}

	login.On("RebootWithFlags", bustest.Reply{Hang: true})
	login.Connect()
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() { answer <- c.Reboot(ctx, plan.KindFull) }()
	bustest.Eventually(t, "the second call", func() bool { return len(login.Calls("RebootWithFlags")) == 2 })
	cancel()
	if err := <-answer; classOf(t, err) != Ambiguous {
		t.Errorf("logind hangs: %v", err)
	}
	if err := c.Reboot(ctx, plan.KindFull); classOf(t, err) != Unavailable {
		t.Errorf("nothing was sent with an ended context: %v", err)
	}

	go func() { answer <- c.Reboot(t.Context(), plan.KindFull) }()
	bustest.Eventually(t, "the third call", func() bool { return len(login.Calls("RebootWithFlags")) == 3 })
	d.Kill()
	if err := <-answer; classOf(t, err) != Ambiguous {
		t.Errorf("the bus died: %v", err)
	}
}

func TestInhibitorsAreNamedWhenTheyBlockAShutdown(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	if got, err := c.Inhibitors(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("Inhibitors = %q, %v", got, err)
	}
	login.SetInhibitors(
		apt,
		bustest.Inhibitor{What: "shutdown", Who: "kubelet", Why: "node shutdown", Mode: "delay"},
		bustest.Inhibitor{What: "sleep:idle", Who: "x", Why: "y", Mode: "block"},
		bustest.Inhibitor{What: "shutdown", Who: "weak", Why: "y", Mode: "block-weak"},
		bustest.Inhibitor{What: "shutdown", Who: "future", Why: "y", Mode: "delay-weak"},
		bustest.Inhibitor{What: "handle-power-key:shutdown", Who: "a\"b\x1b[2J", Why: strings.Repeat("é", 100),
			Mode: "block", UID: 1000, PID: 7},
	)
	got, err := c.Inhibitors(t.Context())
	want := []string{
		`"apt" (pid 123, uid 0): "Package manager running"`,
		`"weak" (pid 0, uid 0): "y"`,
		`"a'b [2J" (pid 7, uid 1000): "` + strings.Repeat("é", 62) + `…"`,
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("Inhibitors = %q, %v", got, err)
	}
	login.SetInhibitors(slices.Repeat([]bustest.Inhibitor{apt}, 1000)...)
	if got, _ := c.Inhibitors(t.Context()); len(got) != maxInhibitors {
		t.Errorf("%d inhibitors", len(got))
	}
}

func TestTheForecastIsRead(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	for _, want := range []string{"yes", "challenge", "inhibitor-blocked"} {
		login.SetCan(want)
		if got, err := c.CanReboot(t.Context()); err != nil || got != want {
			t.Errorf("CanReboot = %q, %v", got, err)
		}
	}
	login.Disconnect()
	if _, err := c.CanReboot(t.Context()); err == nil {
		t.Error("an absent logind has no error")
	}
}

func TestPropertiesAreRead(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	if delay, err := c.InhibitDelayMax(t.Context()); err != nil || delay != 5*time.Second {
		t.Errorf("InhibitDelayMax = %v, %v", delay, err)
	}
	login.SetProperty(path, iface, "InhibitDelayMaxUSec", uint64(math.MaxUint64))
	if delay, err := c.InhibitDelayMax(t.Context()); err != nil || delay != math.MaxInt64 {
		t.Errorf("InhibitDelayMax without an end = %v, %v", delay, err)
	}
	if what, at, err := c.ScheduledShutdown(t.Context()); err != nil || what != "" || !at.IsZero() {
		t.Errorf("nothing scheduled: %q, %v, %v", what, at, err)
	}
	login.SetScheduled("reboot", 1_800_000_000_000_000)
	if what, at, err := c.ScheduledShutdown(t.Context()); err != nil || what != "reboot" || at.Unix() != 1_800_000_000 {
		t.Errorf("scheduled: %q, %v, %v", what, at, err)
	}
	login.SetScheduled("reboot", 35_613_464)
	if what, at, err := c.ScheduledShutdown(t.Context()); err != nil || what != "reboot" || !at.IsZero() {
		t.Errorf("while it is under way, as 257 shows it: %q, %v, %v", what, at, err)
	}
	login.SetScheduled("reboot", trialUSec)
	if what, at, err := c.ScheduledShutdown(t.Context()); err != nil || what != "" || !at.IsZero() {
		t.Errorf("a trial of ours: %q, %v, %v", what, at, err)
	}
	login.SetScheduled("reboot", math.MaxUint64)
	if what, at, err := c.ScheduledShutdown(t.Context()); err != nil || what != "reboot" || !at.IsZero() {
		t.Errorf("scheduled for never: %q, %v, %v", what, at, err)
	}
	login.SetProperty(path, iface, "PreparingForShutdown", "yes")
	if _, err := c.PreparingForShutdown(t.Context()); err == nil {
		t.Error("a property of another type has no error")
	}
	login.On("Get", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "no"))
	if _, err := c.PreparingForShutdown(t.Context()); err == nil {
		t.Error("a refused property has no error")
	}
}

func TestAShutdownAndInhibitorsAreAnnouncedAlsoAfterARestart(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	var hints atomic.Int64
	c.Watch(func() { hints.Add(1) })
	hinted := func(what string, do func()) {
		t.Helper()
		before := hints.Load()
		do()
		bustest.Eventually(t, what, func() bool { return hints.Load() > before })
	}
	bustest.Eventually(t, "the matches", func() bool { return hints.Load() > 0 })
	for range 2 {
		hinted("shutdown", func() { login.PrepareForShutdown(true) })
		if on, err := c.PreparingForShutdown(t.Context()); err != nil || !on {
			t.Errorf("PreparingForShutdown = %v, %v", on, err)
		}
		hinted("called off", func() { login.PrepareForShutdown(false) })
		hinted("inhibitor", func() { login.SetInhibitors(apt) })
		hinted("no inhibitor", func() { login.SetInhibitors() })
		hinted("restart", login.Connect)
	}
	// What the true logind sends is a hint whatever is in it: the state is read.
	for _, body := range [][]any{{}, {"true"}, {true, false}} {
		hinted("a body of another shape", func() { login.Emit(path, iface+".PrepareForShutdown", body...) })
	}
	dropped, before := c.bus.Dropped(), hints.Load()
	stranger := bustest.NewStranger(d)
	for _, body := range [][]any{{}, {true}, {false}, {"true"}} {
		stranger.Unicast(path, iface+".PrepareForShutdown", body...)
	}
	stranger.Unicast(path, "org.freedesktop.DBus.Properties.PropertiesChanged",
		iface, map[string]dbus.Variant{"BlockInhibited": dbus.MakeVariant("")}, []string{})
	bustest.Eventually(t, "the forgeries counted", func() bool { return c.bus.Dropped() == dropped+5 })
	if hints.Load() != before {
		t.Error("a forgery was a hint")
	}
}

// MCO#713 and brupop#630: what was asked before the connection broke may well come.
func TestAConnectionCutAfterTheRebootWasAskedForIsAmbiguous(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	proxy := bustest.NewProxy(d)
	b := bus.New(bus.Options{Address: proxy.Address})
	c := New(b)
	var hints atomic.Int64
	c.Watch(func() { hints.Add(1) })
	bustest.Connect(t, b)
	for _, pass := range []bool{true, false} {
		before := hints.Load()
		proxy.Cut("RebootWithFlags", pass)
		if err := c.Reboot(t.Context(), plan.KindFull); classOf(t, err) != Ambiguous {
			t.Errorf("Reboot = %v", err)
		}
		login.PrepareForShutdown(pass)
		// The state is there to be read after the reconnect, and a hint says so.
		bustest.Eventually(t, "a hint and the state", func() bool {
			on, err := c.PreparingForShutdown(t.Context())
			return hints.Load() > before && err == nil && on == pass
		})
	}
	bustest.Eventually(t, "the one call", func() bool { return len(login.Calls("RebootWithFlags")) == 1 })
}
