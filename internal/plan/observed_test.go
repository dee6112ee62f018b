// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestLevelsAndKindsPrintAsTheWordsThatScriptsRead(t *testing.T) {
	t.Parallel()
	var got []string
	for _, v := range []fmt.Stringer{
		NotRequired, Required, Unknown, Level(-1), KindSoft, KindKexec, KindFull, Kind(0), Kind(9),
	} {
		got = append(got, v.String())
	}
	want := []string{"not-required", "required", "unknown", "unknown(-1)", "soft", "kexec", "full", "", "unknown(9)"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The uptime runs through a soft reboot, so it says nothing about the age of the userspace, and all about the time that
// has gone by since.
func TestAfterASoftRebootTheUptimeIsNotTheAgeOfTheBoot(t *testing.T) {
	t.Parallel()
	const days = 240 * time.Hour
	p := Policy{LoopGuard: 24 * time.Hour, MinInterval: time.Hour, BootDeadline: 15 * time.Minute}
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	o := Observed{
		Now: now, Uptime: days + time.Minute, Boot: "kernel.2", Began: days, API: APIRead,
		Node: Node{UID: "u"}, Record: Record{Marked: true, Boot: "kernel.1", NodeUID: "u"}, Health: Health{Why: "kubelet"},
	}
	step := Next(p, o)
	if step.Phase != Returning || Trouble(p, o, step) != "" || step.Wake != days+p.BootDeadline {
		t.Errorf("a minute after it: %+v, trouble %q", step, Trouble(p, o, step))
	}
	o.Uptime = days + p.BootDeadline + time.Second
	if step = Next(p, o); Trouble(p, o, step) != TroubleUnhealthy {
		t.Errorf("past the deadline: %+v", step)
	}
	o.Record = Record{Last: &LastReboot{
		Moment:  Moment{At: now.Add(-time.Minute), Boot: "kernel.1", Up: days},
		Reasons: []Reason{{Source: "file", ID: "glibc"}},
	}}
	o.Need, o.Reasons, o.Window.Open, o.Uptime = Required, o.Record.Last.Reasons, true, days+time.Minute
	if got := Blockers(p, o); len(got) != 2 {
		t.Errorf("a minute after the last reboot: %+v", got)
	}
}
