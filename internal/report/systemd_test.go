// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"regexp"
	"strings"
	"testing"
)

func TestSystemdIsToldThePhaseAndTheSteps(t *testing.T) {
	path, _, next := datagrams(t)
	t.Setenv("NOTIFY_SOCKET", path)

	for _, c := range []struct {
		send func() error
		want string
	}{
		{Ready, "^READY=1$"},
		{Watchdog, "^WATCHDOG=1$"},
		{Reloading, "^RELOADING=1\nMONOTONIC_USEC=[0-9]+\n$"},
		{Stopping, "^STOPPING=1$"},
	} {
		if err := c.send(); err != nil {
			t.Error(err)
		}
		if got := next(); !regexp.MustCompile(c.want).MatchString(got) {
			t.Errorf("got %q, want %s", got, c.want)
		}
	}

	r := New("node-1", "1")
	r.Add(NewSystemd())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	u := full()
	u.Why = "one\ntwo READY=1"
	r.Update(u)
	if got := next(); got != "STATUS=Draining: one two READY=1" {
		t.Errorf("got %q", got)
	}
	u.SlotHolders = "another" // no news for STATUS=
	r.Update(u)
	u.Phase, u.Why = "Idle", strings.Repeat("x", 1<<20)
	r.Update(u)
	if got := next(); !strings.HasPrefix(got, "STATUS=Idle: xxx") || len(got) > maxWhy+10 {
		t.Errorf("got %d bytes", len(got))
	}
	cancel()
	<-ended
}

func TestOutsideAUnitNothingIsSent(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Ready(); err != nil {
		t.Error(err)
	}
}
