// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// watched is a client whose bus knows the owner of logind's name, as in the agent, which watches it from the start.
func watched(t *testing.T, d *bustest.Daemon) *Client {
	t.Helper()
	b := bus.New(bus.Options{Address: d.Address})
	c := New(b)
	c.Watch(func() {})
	bustest.Connect(t, b)
	return c
}

func take(t *testing.T, c *Client) {
	t.Helper()
	if err := c.Delay.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func locks(t *testing.T, login *bustest.FakeLogin1, want int) {
	t.Helper()
	bustest.Eventually(t, "the locks", func() bool { return login.Locks() == want })
}

func TestTheDelayIsTakenOnceAndReleased(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := watched(t, d)
	if c.Delay.Held() {
		t.Error("held before it is taken")
	}
	for range 3 {
		take(t, c)
	}
	calls := login.Calls("Inhibit")
	if len(calls) != 1 || calls[0].Args[0] != "shutdown" || calls[0].Args[1] != "kured-agent" || calls[0].Args[3] != "delay" {
		t.Errorf("calls %v", calls)
	}
	if login.Locks() != 1 || !c.Delay.Held() {
		t.Errorf("%d locks, held %v", login.Locks(), c.Delay.Held())
	}
	if holders, err := c.Inhibitors(t.Context()); err != nil || len(holders) != 0 {
		t.Errorf("our own lock blocks: %q, %v", holders, err)
	}
	c.Delay.Release()
	c.Delay.Release()
	locks(t, login, 0)
	if c.Delay.Held() {
		t.Error("held after the release")
	}
	take(t, c)
	locks(t, login, 1)
}

func TestNoProgramInheritsTheLock(t *testing.T) {
	d := bustest.Start(t)
	bustest.NewLogin1(d)
	c := watched(t, d)
	take(t, c)
	flags, err := unix.FcntlInt(c.Delay.lock.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %d, %v", flags, err)
	}
}

func TestARebootOfOursIsNotDelayedByOurselves(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := watched(t, d)
	take(t, c)
	login.On("RebootWithFlags", bustest.Reply{Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() { answer <- c.Reboot(ctx, plan.KindFull) }()
	bustest.Eventually(t, "the reboot call", func() bool { return len(login.Calls("RebootWithFlags")) == 1 })
	locks(t, login, 0)
	cancel()
	if err := <-answer; classOf(t, err) != Ambiguous {
		t.Errorf("Reboot = %v", err)
	}
	login.On("RebootWithFlags", bustest.Refuse(accessDenied, "no"))
	_ = c.Reboot(t.Context(), plan.KindFull)
	take(t, c) // refused: the next foreign one is to be seen in time again
	locks(t, login, 1)
}

func TestAShutdownUnderWayGivesNoLockAndOneCalledOffDoes(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := watched(t, d)
	take(t, c)
	login.PrepareForShutdown(true)
	take(t, c)
	if !c.Delay.Held() {
		t.Error("the lock is gone before the node is marked")
	}
	c.Delay.Release()
	for range 3 {
		take(t, c)
	}
	if n := len(login.Calls("Inhibit")); n != 2 || c.Delay.Held() {
		t.Errorf("%d calls, held %v", n, c.Delay.Held())
	}
	stranger := bustest.NewStranger(d)
	for _, body := range [][]any{{false}, {}} {
		dropped := c.bus.Dropped()
		stranger.Unicast(path, iface+".PrepareForShutdown", body...)
		bustest.Eventually(t, "the forgery counted", func() bool { return c.bus.Dropped() > dropped })
	}
	for _, body := range [][]any{{}, {"false"}, {uint32(0)}, {false, false}} {
		login.Emit(path, iface+".PrepareForShutdown", body...)
	}
	take(t, c)
	if n := len(login.Calls("Inhibit")); n != 2 {
		t.Errorf("a forgery or nonsense had us ask: %d calls", n)
	}
	login.PrepareForShutdown(false)
	bustest.Eventually(t, "the lock again", func() bool { take(t, c); return c.Delay.Held() })
	locks(t, login, 1)
}

func TestTheLockIsTakenAgainFromANewLogindAndANewBusAndNoDescriptorIsLost(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := watched(t, d)
	take(t, c)
	locks(t, login, 1)
	again := func(restart func()) {
		t.Helper()
		before := len(login.Calls("Inhibit"))
		restart()
		bustest.Eventually(t, "another Inhibit", func() bool {
			_ = c.Delay.Take(t.Context())
			return len(login.Calls("Inhibit")) > before
		})
		bustest.Eventually(t, "the lock", c.Delay.Held)
		locks(t, login, 1)
	}
	rounds := func() {
		t.Helper()
		again(func() { d.Kill(); d.Restart(); login.Connect() })
		for range 10 {
			again(login.Connect)
			again(c.Delay.Release)
		}
	}
	rounds()
	before := bustest.OpenFiles(t)
	rounds()
	bustest.Eventually(t, "as many descriptors as before", func() bool { return bustest.OpenFiles(t) <= before })
}

func TestTheLockOutlivesALogindThatGivesNoNewOne(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := watched(t, d)
	take(t, c)
	login.On("Inhibit", bustest.Refuse("org.freedesktop.DBus.Error.LimitsExceeded", "Maximum number of inhibitors reached"))
	owner := c.bus.Owner(name)
	login.Connect()
	bustest.Eventually(t, "the new owner", func() bool { o := c.bus.Owner(name); return o != "" && o != owner })
	for range 2 {
		if err := c.Delay.Take(t.Context()); err == nil {
			t.Error("no error")
		}
	}
	if !c.Delay.Held() || login.Locks() != 1 {
		t.Error("the old lock was let go for nothing")
	}
}

func TestADenialIsReportedOnceUntilLogindIsAnother(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := watched(t, d)
	for _, name := range []string{accessDenied, std + "InteractiveAuthorizationRequired"} {
		login.On("Inhibit", bustest.Refuse(name, "no"))
		c.Delay.Release()
		before := len(login.Calls("Inhibit"))
		if err := c.Delay.Take(t.Context()); !bus.IsNamed(err, name) {
			t.Errorf("Take = %v", err)
		}
		for range 3 {
			take(t, c)
		}
		if n := len(login.Calls("Inhibit")) - before; n != 1 || c.Delay.Held() {
			t.Errorf("%d calls, held %v", n, c.Delay.Held())
		}
	}
	login.On("Inhibit", bustest.Reply{})
	login.Connect()
	bustest.Eventually(t, "the lock of the new logind", func() bool { take(t, c); return c.Delay.Held() })
}

func TestTakingWithoutABusOrALogindIsAnErrorEachTime(t *testing.T) {
	d := bustest.Start(t)
	c := watched(t, d)
	for range 2 {
		if err := c.Delay.Take(t.Context()); classify(err) != Unavailable {
			t.Errorf("no logind: %v", err)
		}
	}
	d.Kill()
	bustest.Eventually(t, "the loss", func() bool { return !c.bus.Connected() })
	if err := c.Delay.Take(t.Context()); classify(err) != Unavailable {
		t.Errorf("no bus: %v", err)
	}
	c.Delay.Release()
}
