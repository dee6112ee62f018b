// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
)

// Names of D-Bus errors.
const (
	std           = "org.freedesktop.DBus.Error."
	accessDenied  = std + "AccessDenied"
	unknownMethod = std + "UnknownMethod"
	invalidArgs   = std + "InvalidArgs"
)

// Class says what a refusal means for the caller.
type Class int

// Classes of refusals.
const (
	Other         Class = iota // refused for a reason of no known class
	Inhibited                  // somebody holds a block inhibitor: wait
	NotAuthorized              // polkit wants a password: its rule for the agent is missing
	NoPolicy                   // denied without an inhibitor: no polkit on the host, the bus policy, reboot.target masked
	Unavailable                // logind is not on the bus, or the bus is away: nothing was asked
	InProgress                 // a shutdown is under way already: as good as accepted
	Ambiguous                  // asked, and no answer: the reboot may come
	Unsupported                // this host cannot do this kind of reboot now: a higher kind may work
)

var classNames = [...]string{
	"refused", "held by an inhibitor",
	"not authorized by polkit (is its rule 50-kured-agent.rules installed?)",
	"access denied (is polkit installed? without it see the example no-polkit.conf)",
	"logind unavailable", "a shutdown is under way", "no answer", "not possible on this host",
}

func (c Class) String() string { return classNames[c] }

// RefusedError is every error of Reboot and Preflight.
type RefusedError struct {
	Class Class
	Err   error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("asking logind for a reboot: %s: %v", e.Class, e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// refused classifies err, which is not nil. A block inhibitor is refused by the same errors as a missing right: root
// sees "access denied" since 257, and others are asked for the right to ignore inhibitors.
func (c *Client) refused(ctx context.Context, err error) *RefusedError {
	class := classify(err)
	if class == NoPolicy || class == NotAuthorized || class == Inhibited {
		if holders, listErr := c.Inhibitors(ctx); listErr == nil && len(holders) > 0 {
			return &RefusedError{Inhibited, fmt.Errorf("%s: %w", strings.Join(holders, ", "), err)}
		}
	}
	return &RefusedError{class, err}
}

// notAsked is refused for a call that cannot take the machine down, answered or not.
func (c *Client) notAsked(ctx context.Context, err error) *RefusedError {
	refused := c.refused(ctx, err)
	if refused.Class == Ambiguous {
		refused.Class = Unavailable
	}
	return refused
}

// classify maps an error of the reboot call, which is not nil, as far as the error alone tells.
func classify(err error) Class {
	reply, answered := errors.AsType[dbus.Error](err)
	if !answered {
		if errors.Is(err, bus.ErrNotConnected) {
			return Unavailable
		}
		return Ambiguous
	}
	switch reply.Name {
	case "org.freedesktop.login1.OperationInProgress":
		return InProgress
	case "org.freedesktop.login1.BlockedByInhibitorLock":
		return Inhibited
	case std + "InteractiveAuthorizationRequired":
		return NotAuthorized
	case accessDenied:
		if strings.Contains(reply.Error(), "inhibitor") {
			return Inhibited
		}
		return NoPolicy
	case std + "ServiceUnknown", std + "NameHasNoOwner", std + "TimedOut":
		return Unavailable // TimedOut: of the activation, so that logind never saw the call (systemd/systemd#36035)
	case std + "NoReply", std + "Timeout", std + "Disconnected":
		return Ambiguous // bottlerocket-os/bottlerocket-update-operator#630
	}
	if strings.HasPrefix(reply.Name, std+"Spawn.") {
		return Unavailable
	}
	return Other
}
