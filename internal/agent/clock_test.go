// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

func TestAHostThatLearnsTheTimeAfterItsBootDoesNotRebootInALoop(t *testing.T) {
	for _, year := range []int{1970, 2150} {
		start := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t)
			s.persist = true
			s.tweak = func(a *Agent, _ bool) {
				a.Now = func() time.Time {
					if s.uptime() < 2*time.Minute {
						return start.Add(s.uptime())
					}
					return time.Now()
				}
			}
			s.life(6 * time.Hour)
			if s.reboots != 1 {
				t.Errorf("clock in %d after a boot: %d reboots in six hours for the same reason", year, s.reboots)
			}
		})
	}
}

func TestAClockSetInTheMiddleNeitherEndsNorProlongsABackOff(t *testing.T) {
	for _, jump := range []time.Duration{-5 * 365 * 24 * time.Hour, -time.Hour, time.Hour, 5 * 365 * 24 * time.Hour} {
		for _, at := range []time.Duration{2 * time.Minute, 20 * time.Minute, 25 * time.Minute} {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t).held()
				began := time.Now()
				s.tweak = func(a *Agent, _ bool) {
					a.Now = func() time.Time {
						if time.Since(began) >= at {
							return time.Now().Add(jump)
						}
						return time.Now()
					}
				}
				s.after(21*time.Minute, func() { s.stuck = false; s.notHeldLocked("the drain took too long") })
				s.after(34*time.Minute, func() {
					if s.cordons > 0 {
						t.Errorf("clock set by %s at %s: cordoned again in the back-off of 15 minutes", jump, at)
					}
				})
				s.runFor(time.Hour)
				if s.reboots != 1 {
					t.Errorf("clock set by %s at %s: %d reboots", jump, at, s.reboots)
				}
			})
		}
	}
}

func TestAnAttemptWhoseWindowClosesNeverAsksOutsideIt(t *testing.T) {
	for _, latency := range []time.Duration{20 * time.Millisecond, 3 * time.Second} {
		for tenths := range 150 {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t).booted(1)
				s.latency = latency
				closes := time.Now().Add(time.Duration(tenths) * latency / 4)
				s.window = func(now time.Time) plan.Window {
					if now.Before(closes) {
						return plan.Window{Open: true, Closes: closes}
					}
					return plan.Window{}
				}
				s.tweak = func(a *Agent, _ bool) { a.Logind = timely{simLogind{s}, closes} }
				s.runFor(10 * time.Minute)
				if s.reboots == 0 {
					s.notHeld("the window is closed")
				}
			})
		}
	}
}

type timely struct {
	simLogind
	closes time.Time
}

func (l timely) Reboot(ctx context.Context, kind plan.Kind, why string) error {
	if late := time.Since(l.closes); late >= 0 {
		l.t.Errorf("asking for a reboot %s after the window closed", late)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shutdown = true
	l.reboots++
	time.AfterFunc(3*time.Second, l.kill)
	return nil
}

func TestAnInhibitorTakenDuringTheLastVerificationIsObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSim(t).booted(1)
		s.pods = 0
		s.tweak = func(a *Agent, _ bool) { a.Slots = inhibits{simSlots{s}} }
		s.runFor(10 * time.Minute)
		if s.reboots > 0 {
			t.Error("rebooted over an inhibitor")
		}
	})
}

type inhibits struct{ simSlots }

func (i inhibits) Verify(ctx context.Context, name, uid string) (bool, string, error) {
	ours, why, err := i.simSlots.Verify(ctx, name, uid)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.node.Unschedulable {
		i.inhibit = []string{"apt"}
	}
	return ours, why, err
}
