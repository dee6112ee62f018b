// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = "/org/freedesktop/systemd1"
	systemdManager = "org.freedesktop.systemd1.Manager"
	systemdUnit    = "org.freedesktop.systemd1.Unit"

	// requiredTarget is the bridge: whatever systemd can start may require a reboot.
	requiredTarget = "kured-reboot-required.target"
)

var unitForm = regexp.MustCompile(
	`^[A-Za-z0-9:_.\\@-]+\.(service|socket|device|mount|automount|swap|target|path|timer|slice|scope)$`)

func init() {
	register("systemd-unit", kind{
		about: About{
			Watched: "one systemd unit (`PropertiesChanged` of systemd, and every 10 minutes); by itself " +
				"`kured-reboot-required.target`, which any unit may pull in and root may start",
			Required: "the unit is active",
			Cleared: "it is stopped (`systemctl stop kured-reboot-required.target`), or the reboot; a target that was started " +
				"because of a file stays active when the file goes",
		},
		keys: []key{{name: "unit", required: true, check: isUnit}},
		build: func(options map[string]any, env Env) Source {
			return &systemdUnitSource{env.Bus, options["unit"].(string)}
		},
		presets: []map[string]any{{"unit": requiredTarget}},
		installed: anyOf("usr/lib/systemd/system/"+requiredTarget, "lib/systemd/system/"+requiredTarget,
			"etc/systemd/system/"+requiredTarget),
	})
}

var isUnit = isText(func(s string) bool {
	return len(s) <= maxBusName && unitForm.MatchString(s) && !strings.Contains(s, "@.")
}, "a unit like example-update.service")

// systemdUnitSource requires a reboot while a unit is active.
type systemdUnitSource struct {
	bus  *bus.Bus
	unit string
}

func (u *systemdUnitSource) Name() string { return "systemd-unit:" + u.unit }

func (u *systemdUnitSource) Run(ctx context.Context, report func(State)) error {
	return followBus(ctx, u.bus, bus.Match{
		Sender: systemdName, Path: bus.UnitPath(u.unit),
		Interface: "org.freedesktop.DBus.Properties", Member: "PropertiesChanged", Arg0: systemdUnit,
	}, u.read, report)
}

// read subscribes each time. systemd sends nothing without a subscriber, and forgets its subscribers when it or we leave
// the bus (systemd/systemd#27697); a read follows all of that, and a second subscription is refused without harm.
func (u *systemdUnitSource) read(ctx context.Context) (State, error) {
	_, _ = u.call(ctx, "Subscribe")
	body, err := u.call(ctx, "LoadUnit", u.unit)
	if err != nil {
		return State{}, err // also without an owner: a systemd that is off the bus still has its units
	}
	object, err := parseUnit(body)
	if err != nil {
		return State{}, err
	}
	load, err := bus.Property[string](ctx, u.bus, systemdName, object, systemdUnit, "LoadState")
	if err != nil {
		return State{}, err
	}
	active, err := bus.Property[string](ctx, u.bus, systemdName, object, systemdUnit, "ActiveState")
	if err != nil {
		return State{}, err
	}
	return u.state(load, active), nil
}

func (u *systemdUnitSource) call(ctx context.Context, method string, args ...any) ([]any, error) {
	return u.bus.Call(ctx, bus.Call{
		Destination: systemdName, Path: systemdPath, Member: systemdManager + "." + method, Args: args, NoAutoStart: true,
	})
}

func parseUnit(body []any) (string, error) {
	if len(body) == 1 {
		if object, ok := body[0].(dbus.ObjectPath); ok && object.IsValid() {
			return string(object), nil
		}
	}
	return "", errors.New("finding a unit: the answer is not an object path")
}

// activeStates are those of a unit that has started and was not stopped since.
var activeStates = []string{"active", "reloading", "refreshing"}

func (u *systemdUnitSource) state(load, active string) State {
	if !slices.Contains(activeStates, active) {
		if load != "loaded" {
			return State{Level: plan.NotRequired, Note: "the unit is " + clean(load, plan.MaxReasonID)}
		}
		return State{Level: plan.NotRequired}
	}
	return State{Level: plan.Required, Reasons: []plan.Reason{{
		ID: u.unit, Text: fmt.Sprintf("unit %s is active", u.unit), Kind: plan.KindFull,
	}}}
}
