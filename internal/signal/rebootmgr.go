// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	rebootmgrName   = "org.opensuse.RebootMgr"
	rebootmgrPath   = "/org/opensuse/RebootMgr"
	rebootmgrSocket = "run/rebootmgr/rebootmgrd.socket"

	// pollRebootmgr is how often it is asked: no version of it announces a change.
	pollRebootmgr = time.Minute

	// methodSoft is a soft reboot in RequestedMethod.
	methodSoft = 2
)

// rebootmgrInstalled are its unit, and its bus policy up to version 2.
var rebootmgrInstalled = []string{
	"usr/lib/systemd/system/rebootmgr.service",
	"usr/share/dbus-1/system.d/org.opensuse.RebootMgr.conf",
	"etc/dbus-1/system.d/org.opensuse.RebootMgr.conf",
}

func init() {
	register("rebootmgr", kind{
		about: About{
			Watched: "rebootmgrd, asked every minute: from version 3 on over varlink " +
				"(`/run/rebootmgr/rebootmgrd.socket`, `Status`), before that over D-Bus (`org.opensuse.RebootMgr`, `Status`)",
			Required: "a reboot was requested of it, whether it waits for its window or has its reboots turned off; " +
				"a soft one is known from version 3 on",
			Cleared: "`rebootmgrctl cancel`, or rebootmgrd has been down for 2 minutes: it remembers nothing",
			Beside: "`systemctl mask --now rebootmgr.service`, with `REBOOT_METHOD=kured` in " +
				"`/etc/transactional-update.conf`; or, to go on being told by it, `rebootmgrctl set-strategy maint-window` and " +
				"`rebootmgrctl set-window 2199-01-01 1h`, a window that never comes, with `refuse_beside = false`; after " +
				"`set-strategy off` versions 1 and 2 drop requests, and version 3 reboots again once it is restarted",
		},
		build: func(_ map[string]any, env Env) Source {
			return &rebootmgr{bus: env.Bus, socket: filepath.Join(env.Root, rebootmgrSocket)}
		},
		presets: []map[string]any{nil}, installed: anyOf(rebootmgrInstalled...),
	})
}

// rebootmgr reads what was requested of openSUSE's reboot manager, which would also do it.
type rebootmgr struct {
	bus    *bus.Bus
	socket string
}

func (r *rebootmgr) Name() string { return "rebootmgr" }

func (r *rebootmgr) Run(ctx context.Context, report func(State)) error {
	return follower{
		bus: r.bus, hint: newHints(), every: pollRebootmgr,
		// For the changes of its owner: the signal of its description is never sent.
		match: bus.Match{Sender: rebootmgrName, Path: rebootmgrPath},
	}.run(ctx, r.read, report)
}

// read asks whichever of the two is there: an upgrade changes that at any time.
func (r *rebootmgr) read(ctx context.Context) (State, error) {
	var status rebootmgrStatus
	err := callVarlink(ctx, r.socket, "org.openSUSE.rebootmgr.Status", &status)
	if !errors.Is(err, errAbsent) {
		if err != nil {
			return State{}, err
		}
		return status.state()
	}
	body, err := r.bus.Call(ctx, bus.Call{
		Destination: rebootmgrName, Path: rebootmgrPath, Member: rebootmgrName + ".Status", NoAutoStart: true,
	})
	if err != nil {
		return State{}, classify(err, "the bus policy denies Status, which rebootmgr's own policy file allows to everybody")
	}
	return parseRebootmgr(body)
}

// parseRebootmgr reads (u): 1 requested, 2 waiting for a window, 3 waiting for a lock.
func parseRebootmgr(body []any) (State, error) {
	if len(body) != 1 {
		return State{}, errors.New("reading the status of rebootmgr: not one value")
	}
	status, ok := body[0].(uint32)
	if !ok {
		return State{}, fmt.Errorf("reading the status of rebootmgr: it is a %T", body[0])
	}
	n := int64(status)
	return rebootmgrStatus{Status: &n}.state()
}

// rebootmgrStatus is the answer over varlink; what it leaves out is nil or zero.
type rebootmgrStatus struct {
	Status   *int64 `json:"RebootStatus"`
	Method   int64  `json:"RequestedMethod"` // 1 full, 2 soft
	Time     string `json:"RebootTime"`
	Disabled bool   `json:"RebootDisabled"`
}

func (r rebootmgrStatus) state() (State, error) {
	if r.Status == nil || *r.Status < 0 {
		return State{}, errors.New("reading the status of rebootmgr: no RebootStatus")
	}
	if *r.Status == 0 {
		return State{Level: plan.NotRequired}, nil
	}
	reason := plan.Reason{ID: "reboot", Text: "a reboot was requested of rebootmgr", Kind: plan.KindFull}
	if r.Method == methodSoft {
		reason = plan.Reason{ID: "soft-reboot", Text: "a soft reboot was requested of rebootmgr", Kind: plan.KindSoft}
	}
	note := ""
	switch {
	case r.Disabled:
		note = "rebootmgr itself does not reboot until it is started again"
	case r.Time != "":
		note = "rebootmgr itself would reboot at " + clean(r.Time, plan.MaxReasonText)
	}
	return State{Level: plan.Required, Reasons: []plan.Reason{reason}, Note: note}, nil
}
