// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/host"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/units"
)

// Between two tries of the boot unit nobody works on the return, so the agent may.
func TestTheBootUnitWorksOnlyWhileItRunsOrIsAboutTo(t *testing.T) {
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	b := bus.New(bus.Options{Address: d.Address})
	bustest.Connect(t, b)
	for _, c := range []struct {
		unit bustest.FakeUnit
		want bool
	}{
		{bustest.FakeUnit{Active: "activating", Sub: "start"}, true},
		{bustest.FakeUnit{Active: "inactive", Sub: "dead", JobType: "start"}, true},
		{bustest.FakeUnit{Active: "activating", Sub: "auto-restart"}, false},
		{bustest.FakeUnit{Active: "inactive", Sub: "dead"}, false},
		{bustest.FakeUnit{Active: "failed", Sub: "failed"}, false},
		{bustest.FakeUnit{Active: "active", Sub: "exited"}, false},
	} {
		systemd.SetUnit(bootUnit, c.unit)
		s := systemManager{units.New(b), false, new(string)}
		if got, err := s.BootUnitWorks(t.Context()); err != nil || got != c.want {
			t.Errorf("%+v: %v, %v", c.unit, got, err)
		}
		s.isBootUnit = true
		if got, err := s.BootUnitWorks(t.Context()); err != nil || got {
			t.Errorf("the boot unit waits for itself: %v, %v", got, err)
		}
	}
}

func TestTheSystemGoesDownFromTheFirstMomentOfAShutdown(t *testing.T) {
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	b := bus.New(bus.Options{Address: d.Address})
	bustest.Connect(t, b)
	s := systemManager{Client: units.New(b)}
	for _, c := range []struct {
		unit *bustest.FakeUnit
		want bool
	}{
		{nil, false}, // not loaded
		{&bustest.FakeUnit{Active: "inactive", Sub: "dead"}, false},
		{&bustest.FakeUnit{Active: "inactive", Sub: "dead", JobType: "start"}, true},
		{&bustest.FakeUnit{Active: "inactive", Sub: "dead", JobType: "stop"}, false},
	} {
		if c.unit != nil {
			systemd.SetUnit(shutdownTarget, *c.unit)
		}
		if got, err := s.GoingDown(t.Context()); err != nil || got != c.want {
			t.Errorf("%+v: %v, %v", c.unit, got, err)
		}
	}
	systemd.Disconnect()
	if down, err := s.GoingDown(t.Context()); err == nil || down {
		t.Errorf("nobody answers: %v, %v", down, err)
	}
}

func TestABrokenRecordIsSetAsideOnceAndADryRunTouchesNothing(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "state", "record.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := recorder{host.Host{Root: root, State: "/state", Run: "/run"}, true, slog.New(slog.DiscardHandler)}
	if _, err := r.ReadRecord(); !errors.Is(err, host.ErrBroken) {
		t.Errorf("a dry run: %v", err)
	}
	r.dry = false
	for range 2 {
		if got, err := r.ReadRecord(); err != nil || !got.Marked {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if err := r.UpdateRecord(func(r *plan.Record) { r.Boot = "b" }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path + ".broken"); err != nil {
		t.Error(err)
	}
}
