// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/kured-agent/kured-agent/internal/text"
)

// Systemd tells the service manager the phase as STATUS=. Outside a unit (no NOTIFY_SOCKET) it does nothing.
type Systemd struct{ status mailbox[string] }

// NewSystemd returns the sink of one process.
func NewSystemd() *Systemd { return &Systemd{newMailbox[string]()} }

func (s *Systemd) Take(before, after Update) {
	if text := statusLine(after); text != statusLine(before) {
		s.status.put(text)
	}
}

func (s *Systemd) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case text := <-s.status:
			_ = notify("STATUS=" + text)
		}
	}
}

// statusLine is one line of `systemctl status`.
func statusLine(u Update) string {
	if u.Why == "" {
		return u.Phase
	}
	return text.Shorten(u.Phase+": "+u.Why, maxWhy)
}

// Ready says that the start, or a reload, is done.
func Ready() error { return notify(daemon.SdNotifyReady) }

// Watchdog says that the loop is alive. The loop calls it, not a ticker: a ticker would also run beside a stuck loop.
func Watchdog() error { return notify(daemon.SdNotifyWatchdog) }

// Stopping says that the stop has begun.
func Stopping() error { return notify(daemon.SdNotifyStopping) }

// Reloading says that a reload has begun; Ready ends it. Type=notify-reload wants the time; older versions ignore it.
func Reloading() error {
	return notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

func notify(state string) error {
	_, err := daemon.SdNotify(false, state)
	return err
}
