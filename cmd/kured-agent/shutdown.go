// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/config"
	"github.com/kured-agent/kured-agent/internal/drain"
	"github.com/kured-agent/kured-agent/internal/report"
	"github.com/kured-agent/kured-agent/internal/units"
)

func shutdownCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "shutdown",
		Short: "Drain the node while the host goes down (what kured-agent-shutdown.service stops with)",
		Long: `Cordons the node and evicts its pods while the whole system goes down, for as long as [shutdown] drain says.
It does nothing when that is "off", and when systemd says that the system stays up. It never fails, so that nothing keeps
the host from going down: what it could not do is in the journal.`,
		RunE: func(c *cobra.Command, _ []string) error {
			logger := slog.New(report.NewHandler(level(o.debug)))
			if err := o.shutDown(c.Context(), logger); err != nil {
				logger.Warn("the node is not drained", "err", err)
			}
			return nil
		},
	}
}

func (o *options) shutDown(ctx context.Context, logger *slog.Logger) error {
	cfg, err := o.load()
	if err != nil || cfg.Shutdown.Drain == 0 {
		return err
	}
	if due, err := drainDue(ctx); err != nil || !due {
		return err
	}
	now, err := o.thisBoot(ctx, logger)
	if err != nil {
		return err
	}
	p, err := o.wire(cfg, wiring{}, now, logger)
	if err != nil {
		return err
	}
	p.agent.Drainer = drain.New(p.pods.Core(), shutdownDrain(p))
	return p.agent.Shutdown(ctx, cfg.Shutdown.Drain)
}

// shutdownDrain leaves pods without a controller alone, unless they may be lost: they go down with the host and start
// again with it, and need not hold up the others.
func shutdownDrain(p *parts) drain.Options {
	d := p.config.Drain
	unmanaged := "leave"
	if d.UnmanagedPods == config.UnmanagedEvict {
		unmanaged = d.UnmanagedPods
	}
	return drain.Options{
		Node: p.name, Skip: d.Skip, GracePeriod: d.GracePeriod, UnmanagedPods: unmanaged, Uptime: p.uptime,
	}
}

// drainDue says whether the whole system goes down, and a boot gives the node back. It is all that a mere restart of the
// unit asks.
func drainDue(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	systemd := systemManager{Client: units.New(dial(ctx))}
	if down, err := systemd.GoingDown(ctx); err != nil || !down {
		return false, err
	}
	active, files, err := systemd.Installed(ctx, []string{bootUnit})
	if err != nil {
		return false, err
	}
	if file := files[bootUnit]; active[bootUnit] == "" || file == "disabled" || strings.HasPrefix(file, "masked") {
		return false, fmt.Errorf("cordoning: nothing would give the node back after the boot, %s is %s",
			bootUnit, cmp.Or(file, units.NotFound))
	}
	return true, nil
}
