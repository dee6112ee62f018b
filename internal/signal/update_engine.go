// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	updateName     = "com.coreos.update1"
	updatePath     = "/com/coreos/update1"
	updateIface    = "com.coreos.update1.Manager"
	needReboot     = "UPDATE_STATUS_UPDATED_NEED_REBOOT"
	unknownVersion = "0.0.0" // what update_engine tells after its own restart
)

// updateInstalled are the files that show a Flatcar host.
var updateInstalled = []string{
	"usr/share/dbus-1/system.d/com.coreos.update1.conf",
	"etc/dbus-1/system.d/com.coreos.update1.conf",
	"usr/lib/systemd/system/update-engine.service",
}

func init() {
	register("update-engine", kind{
		about: About{
			Watched:  "`com.coreos.update1` (signal `StatusUpdate`, method `GetStatus`), every 10 minutes without a signal",
			Required: "the status is `UPDATE_STATUS_UPDATED_NEED_REBOOT`",
			Cleared:  "any other status; Flatcar announces a reset of it to nobody, so within 10 minutes",
			Beside:   "`systemctl mask --now locksmithd.service`",
		},
		build:   func(_ map[string]any, env Env) Source { return &updateEngine{env.Bus} },
		presets: []map[string]any{nil}, installed: anyOf(updateInstalled...),
	})
}

// updateEngine reads Flatcar's update_engine. Its ResetStatus takes the need back without a signal, so that only the
// slow poll sees it; and it has no D-Bus activation, so that it may appear long after us (coreos/bugs#2179).
type updateEngine struct{ bus *bus.Bus }

func (u *updateEngine) Name() string { return "update-engine" }

func (u *updateEngine) Run(ctx context.Context, report func(State)) error {
	return followBus(ctx, u.bus, bus.Match{
		Sender: updateName, Path: updatePath, Interface: updateIface, Member: "StatusUpdate",
	}, u.read, report)
}

func (u *updateEngine) read(ctx context.Context) (State, error) {
	body, err := u.bus.Call(ctx, bus.Call{
		Destination: updateName, Path: updatePath, Member: updateIface + ".GetStatus", NoAutoStart: true,
	})
	if err != nil {
		return State{}, classify(err, "the bus policy denies GetStatus: install kured-agent's policy file")
	}
	return parseStatus(body)
}

// parseStatus reads (last_checked x, progress d, current_operation s, new_version s, new_size x).
func parseStatus(body []any) (State, error) {
	if len(body) != 5 {
		return State{}, errors.New("reading the status of update_engine: not five values")
	}
	operation, ok := body[2].(string)
	version, ok2 := body[3].(string)
	if !ok || !ok2 {
		return State{}, errors.New("reading the status of update_engine: operation or version is not a string")
	}
	if operation != needReboot {
		return State{Level: plan.NotRequired, Note: clean(operation, plan.MaxReasonText)}, nil
	}
	reason := plan.Reason{ID: version, Text: "Flatcar update " + version + " is installed", Kind: plan.KindFull}
	if version == "" || version == unknownVersion {
		reason.ID, reason.Text = "update", "a Flatcar update is installed"
	}
	return State{Level: plan.Required, Reasons: []plan.Reason{reason}}, nil
}
