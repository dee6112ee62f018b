// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	fwupdName  = "org.freedesktop.fwupd"
	fwupdPath  = "/"
	fwupdIface = "org.freedesktop.fwupd"

	// fwupdNeedsReboot is the value of "UpdateState" after an update that waits for the next boot; fwupd keeps it in its
	// database and compares the time of the boot.
	fwupdNeedsReboot = uint32(4)
	// fwupdNeedsShutdown is the bit in "Flags" of a device that takes its update only without power. The bit 1<<8 for a
	// reboot counts for nothing here: devices carry both all their lives, "needs a reboot after installation".
	fwupdNeedsShutdown = uint64(1) << 17

	// pollFwupd is longer than the two hours after which fwupd leaves: each question would make it stay.
	pollFwupd = 3 * time.Hour
)

// fwupdHistory is fwupd's database of updates: without it there has been none.
const fwupdHistory = "var/lib/fwupd/pending.db"

func init() {
	register("fwupd", kind{
		about: About{
			Watched: "`GetDevices` of `org.freedesktop.fwupd` after each of its signals; it leaves the bus while it idles " +
				"and is started at most once to be asked, if it has ever updated anything",
			Required: "the `UpdateState` of a device is 4, *needs reboot*; of one with the flag *needs shutdown* a note " +
				"says that a power-off is needed, which no reboot replaces. fwupd 2.0.18 and later also writes " +
				"`/run/reboot-required`, for both",
			Cleared: "another `UpdateState`, or the boot",
		},
		build: func(_ map[string]any, env Env) Source {
			return &fwupd{bus: env.Bus, history: filepath.Join(env.Root, fwupdHistory)}
		},
		presets:   []map[string]any{nil},
		installed: anyOf("usr/share/dbus-1/system-services/org.freedesktop.fwupd.service"),
	})
}

// fwupd reads which firmware waits for a reboot.
type fwupd struct {
	bus     *bus.Bus
	history string
	service visitor[State]
}

func (f *fwupd) Name() string { return "fwupd" }

func (f *fwupd) Run(ctx context.Context, report func(State)) error {
	return follower{
		bus: f.bus, hint: newHints(), every: pollFwupd,
		match: bus.Match{Sender: fwupdName, Path: fwupdPath, Interface: fwupdIface}, // Changed, DeviceChanged and so on
	}.run(ctx, func(ctx context.Context) (State, error) {
		s, _, err := f.service.read(func(start bool) (State, error) { return f.ask(ctx, start) })
		return s, err
	}, report)
}

func (f *fwupd) ask(ctx context.Context, start bool) (State, error) {
	if start {
		if _, err := os.Stat(f.history); errors.Is(err, fs.ErrNotExist) {
			return State{}, errAbsent
		}
	}
	body, err := f.bus.Call(ctx, visit(start, bus.Call{
		Destination: fwupdName, Path: fwupdPath, Member: fwupdIface + ".GetDevices",
	}))
	if bus.IsNamed(err, fwupdIface+".NothingToDo") {
		return State{Level: plan.NotRequired, Note: "no device has firmware that fwupd knows"}, nil
	}
	if err != nil {
		return State{}, classify(err, "the bus policy denies GetDevices of fwupd")
	}
	return parseDevices(body)
}

// parseDevices reads aa{sv}.
func parseDevices(body []any) (State, error) {
	if len(body) != 1 {
		return State{}, errors.New("reading the devices of fwupd: not one value")
	}
	devices, ok := body[0].([]map[string]dbus.Variant)
	if !ok {
		return State{}, errors.New("reading the devices of fwupd: not a list of dictionaries")
	}
	s := State{Level: plan.NotRequired}
	var off []string
	for i, device := range devices {
		waits, powerOff, ok := parseDevice(device)
		switch name := deviceText(device, "Name"); {
		case !ok:
			return State{}, fmt.Errorf("reading the devices of fwupd: the state or the flags of number %d have a wrong type", i)
		case waits && powerOff:
			off = append(off, name)
		case waits:
			s.Level = plan.Required
			s.Reasons = append(s.Reasons, firmware(device, name))
		}
	}
	if len(off) > 0 {
		s.Note = clean("a power-off is needed: "+strings.Join(off, ", "), plan.MaxReasonText)
	}
	return s, nil
}

// parseDevice says whether the firmware of a device waits, and whether for the power to go. ok is false where the
// answer is not what fwupd sends.
func parseDevice(device map[string]dbus.Variant) (waits, powerOff, ok bool) {
	state, given := device["UpdateState"]
	if !given {
		return false, false, true
	}
	value, ok := state.Value().(uint32)
	if !ok || value != fwupdNeedsReboot {
		return false, false, ok
	}
	flags, given := device["Flags"]
	bits, ok := flags.Value().(uint64)
	return true, bits&fwupdNeedsShutdown != 0, ok || !given
}

// firmware is the reason of a device: the version that it still runs tells one update of it from the next.
func firmware(device map[string]dbus.Variant, name string) plan.Reason {
	name = cmp.Or(name, "a device")
	reason := plan.Reason{
		ID: cmp.Or(deviceText(device, "DeviceId"), name), Text: "a firmware update of " + name, Kind: plan.KindFull,
	}
	if version := deviceText(device, "Version"); version != "" {
		reason.ID += "@" + version
		reason.Text += ", now at version " + version
	}
	reason.Text += ", waits for the boot"
	return reason
}

// deviceText returns a text of a device, short enough that two of them fit into a reason's ID.
func deviceText(device map[string]dbus.Variant, key string) string {
	s, _ := device[key].Value().(string)
	return clean(s, plan.MaxReasonID/2-1)
}
