// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/units"
)

// boot is what the running system is told apart from an earlier one by.
type boot struct {
	id      string    // the kernel's boot id, and after soft reboots their number: "id.2"
	started time.Time // of the userspace that a soft reboot began; zero: none did
}

// thisBoot asks the kernel, and systemd for what the kernel does not notice. A systemd that does not answer leaves a
// soft reboot unseen: that is told, and the node waits for systemd in any case. Those that the record knows of have been
// all the same: without them a mere restart would look like a reboot.
func (o *options) thisBoot(ctx context.Context, logger *slog.Logger) (boot, error) {
	id, err := o.host().BootID()
	if err != nil {
		return boot{}, err
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	count, started, err := units.New(dial(asking)).SoftReboots(asking)
	switch {
	case err != nil:
		if record, unread := o.host().ReadRecord(); unread == nil && strings.HasPrefix(record.Boot, id+".") {
			id = record.Boot
		}
		logger.Warn("asking systemd for soft reboots: taking this boot for the one that is known", "boot", id, "err", err)
	case count > 0:
		return boot{fmt.Sprintf("%s.%d", id, count), started}, nil
	}
	return boot{id: id}, nil
}
