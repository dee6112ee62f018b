// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	raucName  = "de.pengutronix.rauc"
	raucPath  = "/"
	raucIface = "de.pengutronix.rauc.Installer"

	raucDenied = "the bus policy denies asking RAUC"
)

// errInstalling is told while RAUC writes a slot: a reboot now could leave half of it.
var errInstalling = errors.New("RAUC is installing")

func init() {
	register("rauc", kind{
		about: About{
			Watched: "`de.pengutronix.rauc` (signal `Completed`, property `Operation`, methods `GetPrimary` and " +
				"`GetSlotStatus`), every 10 minutes without a signal; RAUC is not started for it",
			Required: "the next boot is from another slot than the booted one; an update of artifacts alone does not count",
			Cleared: "the booted slot is the primary one again (`rauc status mark-active booted`), which RAUC announces to " +
				"nobody, so within 10 minutes; or the reboot",
			Beside: "`reboot-criteria` in the section `[polling]` of `/etc/rauc/system.conf`",
		},
		build:   func(_ map[string]any, env Env) Source { return &rauc{env.Bus} },
		presets: []map[string]any{nil},
		installed: anyOf("usr/share/dbus-1/system-services/de.pengutronix.rauc.service",
			"usr/lib/systemd/system/rauc.service", "lib/systemd/system/rauc.service"),
	})
}

// rauc compares the slot of the next boot with the booted one. Completed is only a hint: it is sent before RAUC answers
// again, and after updates that need no reboot. RAUC is started by its clients; who takes a need back has to start it,
// so that its absence takes nothing back.
type rauc struct{ bus *bus.Bus }

func (r *rauc) Name() string { return "rauc" }

func (r *rauc) Run(ctx context.Context, report func(State)) error {
	// Whatever RAUC says: Completed, and the change of Operation after it.
	everything := bus.Match{Sender: raucName, Path: raucPath}
	return followBus(ctx, r.bus, everything, keepWhileAway(r.read), report)
}

func (r *rauc) read(ctx context.Context) (State, error) {
	// While it installs, RAUC refuses the other questions.
	operation, err := bus.Property[string](ctx, r.bus, raucName, raucPath, raucIface, "Operation")
	if err != nil {
		return State{}, classify(err, raucDenied)
	}
	if operation != "idle" {
		return State{}, errInstalling
	}
	status, err := r.call(ctx, "GetSlotStatus")
	if err != nil {
		return State{}, err
	}
	primary, err := r.call(ctx, "GetPrimary")
	if err != nil {
		return State{}, err
	}
	return compareSlots(primary, status)
}

func (r *rauc) call(ctx context.Context, method string) ([]any, error) {
	body, err := r.bus.Call(ctx, bus.Call{
		Destination: raucName, Path: raucPath, Member: raucIface + "." + method, NoAutoStart: true,
	})
	return body, classify(err, raucDenied)
}

// compareSlots reads the answers of GetPrimary, (primary s), and GetSlotStatus, (a(sa{sv})).
func compareSlots(primaryBody, statusBody []any) (State, error) {
	primary, ok := onlyValue[string](primaryBody)
	if !ok {
		return State{}, errors.New("reading the primary slot of RAUC: not one string")
	}
	slots, err := parseSlots(statusBody)
	if err != nil {
		return State{}, err
	}
	booted := ""
	for name, slot := range slots {
		if slot["state"] == "booted" {
			booted = name
		}
	}
	next, known := slots[primary]
	switch {
	case !known:
		return State{}, fmt.Errorf("the primary slot %q is not in RAUC's status", clean(primary, plan.MaxReasonID))
	case booted == "":
		return State{Level: plan.NotRequired, Note: "this host was not booted from a slot of RAUC"}, nil
	case booted == primary:
		return State{Level: plan.NotRequired, Note: "booted from " + clean(booted, plan.MaxReasonID)}, nil
	}
	text := fmt.Sprintf("RAUC: the next boot is from slot %s, booted is %s", primary, booted)
	if version := next["bundle.version"]; version != "" {
		text = fmt.Sprintf("RAUC: version %s is installed in slot %s, booted is %s", version, primary, booted)
	}
	// What is in the slot tells this update from the next one. RAUC knows it only with a status file.
	id := cmp.Or(next["bundle.hash"], next["sha256"], next["bundle.version"], primary)
	return State{Level: plan.Required, Reasons: []plan.Reason{{ID: id, Text: text, Kind: plan.KindFull}}}, nil
}

// parseSlots returns the strings that GetSlotStatus tells of each slot.
func parseSlots(body []any) (map[string]map[string]string, error) {
	list, ok := onlyValue[[][]any](body)
	if !ok {
		return nil, errors.New("reading the slots of RAUC: not one list")
	}
	slots := map[string]map[string]string{}
	for _, tuple := range list {
		if len(tuple) != 2 {
			return nil, errors.New("reading the slots of RAUC: a slot has not two values")
		}
		name, ok := tuple[0].(string)
		dict, ok2 := tuple[1].(map[string]dbus.Variant)
		if !ok || !ok2 {
			return nil, errors.New("reading the slots of RAUC: name or status is of another type")
		}
		slot := map[string]string{}
		for key, value := range dict {
			if s, ok := value.Value().(string); ok {
				slot[key] = s
			}
		}
		slots[name] = slot
	}
	return slots, nil
}

// onlyValue returns the value of an answer that has one.
func onlyValue[T any](body []any) (T, bool) {
	var zero T
	if len(body) != 1 {
		return zero, false
	}
	v, ok := body[0].(T)
	return v, ok
}
