// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

var (
	dnf  = bustest.Inhibitor{What: "shutdown", Who: "dnf", Why: "updating", Mode: "block-weak", PID: 7}
	slow = bustest.Inhibitor{What: "shutdown", Who: "kubelet", Why: "node shutdown", Mode: "delay"}
)

// fine stands for no refusal in a table.
const fine Class = -1

func classOrFine(t *testing.T, err error) Class {
	t.Helper()
	if err == nil {
		return fine
	}
	return classOf(t, err)
}

func TestEachVersionIsUnderstoodAsItWasMeasured(t *testing.T) {
	root, user := false, true
	for _, x := range []struct {
		version   int
		user      bool
		inhibitor bustest.Inhibitor
		want      Class
	}{
		{247, root, slow, fine}, {247, user, slow, fine}, {252, user, slow, fine}, {257, root, slow, fine}, {262, user, slow, fine},
		// Root is not held before 257, whatever Inhibitors says.
		{247, root, apt, fine}, {252, root, apt, fine},
		{247, user, apt, Inhibited}, {252, user, apt, Inhibited},
		{257, root, apt, Inhibited}, {257, user, apt, Inhibited},
		{262, root, apt, Inhibited}, {262, user, apt, Inhibited},
		{257, root, dnf, fine}, {262, root, dnf, fine},
		{257, user, dnf, Inhibited}, {262, user, dnf, Inhibited},
	} {
		d := bustest.Start(t)
		login := bustest.NewLogin1(d)
		login.SetVersion(x.version)
		if x.user {
			login.SetUser()
		}
		login.SetInhibitors(x.inhibitor)
		systemd(d)(fmt.Sprintf("%d.1-1~deb1", x.version))
		c := client(t, d)
		preflight, reboot := c.Preflight(t.Context()), c.Reboot(t.Context(), plan.KindFull)
		for _, err := range []error{preflight, reboot} {
			if got := classOrFine(t, err); got != x.want {
				t.Errorf("%d, user %v, %s: %v, want class %d", x.version, x.user, x.inhibitor.Mode, err, x.want)
			}
			if err != nil && !strings.Contains(err.Error(), `"`+x.inhibitor.Who+`"`) {
				t.Errorf("%v does not name the holder", err)
			}
		}
		if what, _, _ := login.Scheduled(); what != "" {
			t.Errorf("%d: %q is scheduled after it", x.version, what)
		}
		d.Kill()
	}
}

func TestTheForecastIsExplained(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	for _, x := range []struct {
		answer string
		want   Class
		says   string
	}{
		{"no", NoPolicy, "masked"},
		{"challenge", NotAuthorized, "password"},
		{"na", Other, "can't be rebooted"},
		{"inhibited", Inhibited, "inhibitor"},
		{"inhibitor-blocked", Inhibited, "inhibitor"},
		{"challenge-inhibitor-blocked", Inhibited, "inhibitor"},
		{"Yes", Other, "no answer known"},
		{"\x1b[2Jyes", Other, "no answer known"},
	} {
		login.SetCan(x.answer)
		err := c.Preflight(t.Context())
		if classOf(t, err) != x.want || !strings.Contains(err.Error(), x.says) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", x.answer, err)
		}
	}
	login.SetInhibitors(apt)
	for answer, want := range map[string]Class{"no": Inhibited, "challenge": Inhibited, "na": Other} {
		login.SetCan(answer)
		if err := c.Preflight(t.Context()); classOf(t, err) != want {
			t.Errorf("%q beside an inhibitor: %v", answer, err)
		}
	}
	if n := len(login.Calls("ScheduleShutdown")); n != 0 {
		t.Errorf("%d trials after a bad forecast", n)
	}
}

func TestATrialIsMadeAndTakenAwayInSilence(t *testing.T) {
	for _, version := range []int{247, 252, 257, 262} {
		d := bustest.Start(t)
		login := bustest.NewLogin1(d)
		login.SetVersion(version)
		login.SetUser()
		c := client(t, d)
		message, on := login.Wall()
		for range 3 {
			if err := c.Preflight(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		trials := login.Calls("ScheduleShutdown")
		if len(trials) != 1 || trials[0].Args[0] != "dry-reboot" || trials[0].Args[1] != trialUSec {
			t.Errorf("%d: trials %v, want one in ten minutes", version, trials)
		}
		if what, _, _ := login.Scheduled(); what != "" {
			t.Errorf("%d: %q is scheduled after it", version, what)
		}
		if walls := login.Walls(); len(walls) > 0 {
			t.Errorf("%d: the terminals show %q", version, walls)
		}
		if m, o := login.Wall(); m != message || o != on {
			t.Errorf("%d: the wall is %q, %v after it", version, m, o)
		}
		c.tried = time.Now().Add(-trialEvery)
		if err := c.Preflight(t.Context()); err != nil || len(login.Calls("ScheduleShutdown")) != 2 {
			t.Errorf("%d: after ten minutes: %v", version, err)
		}
		d.Kill()
	}
}

// A restarted logind takes a trial for a real reboot, so one that a killed agent left must neither be near nor stay.
func TestATrialThatWasLeftBehindIsFarAwayAndTakenAway(t *testing.T) {
	if at := time.UnixMicro(int64(trialUSec)); at.Year() < 2099 {
		t.Errorf("a trial is for %v", at)
	}
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	_, err := c.call(t.Context(), "ScheduleShutdown", "dry-reboot", trialUSec)
	if _, _, dry := login.Scheduled(); err != nil || !dry {
		t.Fatalf("no trial stands: %v", err)
	}
	login.Connect()
	if what, usec, dry := login.Scheduled(); what != "reboot" || usec != trialUSec || dry {
		t.Fatalf("the restarted logind has %q, %d, %v", what, usec, dry)
	}
	if err := c.Preflight(t.Context()); err != nil {
		t.Error(err)
	}
	if what, _, _ := login.Scheduled(); what != "" {
		t.Errorf("%q is still scheduled", what)
	}
}

func TestWhatSomebodyElseScheduledIsLeftAlone(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	const tomorrow uint64 = 1_800_000_000_000_000
	for _, usec := range []uint64{tomorrow, 0, math.MaxUint64} { // 0: under way on 252; the other: for maintenance
		login.SetScheduled("reboot", usec)
		if err := c.Preflight(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.endTrial(t.Context()); err != nil { // somebody took the place of the trial
			t.Error(err)
		}
		if what, got, _ := login.Scheduled(); what != "reboot" || got != usec {
			t.Errorf("scheduled are %q, %d", what, got)
		}
	}
	for _, member := range []string{"ScheduleShutdown", "CancelScheduledShutdown", "SetWallMessage"} {
		if n := len(login.Calls(member)); n != 0 {
			t.Errorf("%d calls of %s", n, member)
		}
	}
	login.SetCan("no")
	if err := c.Preflight(t.Context()); classOf(t, err) != NoPolicy {
		t.Errorf("the forecast does not count beside a schedule: %v", err)
	}
}

func TestNoTrialIsMadeWhileAShutdownIsUnderWay(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	login.PrepareForShutdown(true)
	if err := c.Preflight(t.Context()); classOf(t, err) != InProgress {
		t.Errorf("Preflight = %v", err)
	}
	if n := len(login.Calls("ScheduleShutdown")); n != 0 {
		t.Errorf("%d trials", n)
	}
}

func TestARefusedTrialIsClassifiedAsAReboot(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	for name, want := range map[string]Class{
		std + "InteractiveAuthorizationRequired":        NotAuthorized,
		accessDenied:                                    NoPolicy,
		"org.freedesktop.login1.BlockedByInhibitorLock": Inhibited,
		"org.freedesktop.login1.OperationInProgress":    InProgress,
		std + "ServiceUnknown":                          Unavailable,
		"com.example.Never.Seen":                        Other,
		std + "NoReply":                                 Unavailable, // a trial without an answer takes nothing down
		unknownMethod:                                   fine,        // of a logind without trials
		invalidArgs:                                     fine,
	} {
		c.tried = time.Time{}
		login.On("ScheduleShutdown", bustest.Refuse(name, "no"))
		if err := c.Preflight(t.Context()); classOrFine(t, err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, member := range []string{"Get", "CanReboot", "SetWallMessage"} {
		c.tried = time.Time{}
		login.On("ScheduleShutdown", bustest.Reply{})
		login.On(member, bustest.Refuse(accessDenied, "no"))
		if err := c.Preflight(t.Context()); classOf(t, err) != NoPolicy {
			t.Errorf("%s refused: %v", member, err)
		}
		login.On(member, bustest.Reply{})
	}
	login.Disconnect()
	if err := c.Preflight(t.Context()); classOf(t, err) != Unavailable {
		t.Errorf("no logind: %v", err)
	}
}

func TestATrialWhoseAnswerIsLostIsTakenAway(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	login.On("ScheduleShutdown", bustest.Reply{Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() { answer <- c.Preflight(ctx) }()
	bustest.Eventually(t, "the trial", func() bool { return len(login.Calls("ScheduleShutdown")) == 1 })
	login.SetScheduled("reboot", trialUSec) // it was carried out
	cancel()
	if err := <-answer; classOf(t, err) != Unavailable {
		t.Errorf("Preflight = %v", err)
	}
	if what, _, _ := login.Scheduled(); what != "" {
		t.Errorf("%q is still scheduled", what)
	}
	if _, on := login.Wall(); !on || len(login.Walls()) > 0 {
		t.Errorf("wall %v, shown %q", on, login.Walls())
	}
	login.On("ScheduleShutdown", bustest.Reply{})
	login.On("CancelScheduledShutdown", bustest.Refuse(accessDenied, "no"))
	if err := c.Preflight(t.Context()); classOf(t, err) != NoPolicy {
		t.Errorf("a trial that can't be ended: %v", err)
	}
}

func TestTheTerminalsAreToldWhyAndNotWhenTheRebootIsRefused(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	if _, err := c.call(t.Context(), "SetWallMessage", "of an admin", false); err != nil {
		t.Fatal(err)
	}
	for reply, kept := range map[*bustest.Reply]bool{
		{Error: bustest.Refuse(accessDenied, "no").Error}:                                  false,
		{Error: bustest.Refuse("org.freedesktop.login1.OperationInProgress", "now").Error}: true,
		{Error: bustest.Refuse(std+"NoReply", "no").Error}:                                 true,
	} {
		login.On("RebootWithFlags", *reply)
		_ = c.RebootWithReason(t.Context(), plan.KindFull, "kernel")
		message, on := login.Wall()
		if want := map[bool]string{true: "kernel", false: "of an admin"}[kept]; message != want || on != kept {
			t.Errorf("%v: the wall is %q, %v", reply.Error, message, on)
		}
		if _, err := c.call(t.Context(), "SetWallMessage", "of an admin", false); err != nil {
			t.Fatal(err)
		}
	}
	login.On("RebootWithFlags", bustest.Reply{})
	long := "kernel\n\x07" + strings.Repeat("é", 5000)
	if err := c.RebootWithReason(t.Context(), plan.KindFull, long); err != nil {
		t.Fatal(err)
	}
	walls := login.Walls()
	if len(walls) != 1 || len(walls[0]) > maxWall || strings.ContainsAny(walls[0], "\n\x07") ||
		!strings.HasPrefix(walls[0], "kernel") {
		t.Errorf("the terminals show %q", walls)
	}
}

func TestTheMessageIsTakenBackAlsoAfterTheContextEnded(t *testing.T) {
	d := bustest.Start(t)
	login, manager := bustest.NewLogin1(d), bustest.NewSystemd1(d)
	c := client(t, d)
	manager.On("Get", bustest.Reply{Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() { answer <- c.RebootWithReason(ctx, plan.KindSoft, "kernel") }()
	bustest.Eventually(t, "the question for the version", func() bool { return len(manager.Calls("Get")) == 1 })
	if message, _ := login.Wall(); message != "kernel" {
		t.Errorf("the wall is %q", message)
	}
	cancel()
	if err := <-answer; classOf(t, err) != Unavailable {
		t.Errorf("RebootWithReason = %v", err)
	}
	if message, on := login.Wall(); message != "" || !on {
		t.Errorf("the wall is %q, %v", message, on)
	}
}

func TestAWallMessageThatCannotBeSetStopsNoReboot(t *testing.T) {
	d := bustest.Start(t)
	login := bustest.NewLogin1(d)
	c := client(t, d)
	for i, broken := range []string{"SetWallMessage", "Get"} {
		login.On(broken, bustest.Refuse(std+"InteractiveAuthorizationRequired", "no"))
		if err := c.RebootWithReason(t.Context(), plan.KindFull, "kernel"); err != nil {
			t.Errorf("%s refused: %v", broken, err)
		}
		if n := len(login.Calls("RebootWithFlags")); n != i+1 {
			t.Errorf("%d reboots", n)
		}
	}
	if walls := login.Walls(); slices.Contains(walls, "kernel") {
		t.Errorf("the terminals show %q", walls)
	}
}
