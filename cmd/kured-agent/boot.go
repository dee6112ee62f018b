// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/config"
	"github.com/kured-agent/kured-agent/internal/report"
)

func bootCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "boot",
		Short: "Give the node back after a boot (what kured-agent-boot.service starts)",
		Long: `Waits until this boot is healthy (the kubelet reports this boot id as Ready, the network is available,
systemd's boot-complete.target is reached, configured pods are Ready), then removes taint, cordon and marker with one
patch and gives the slot back. Before that it renews the token if that is due. It does nothing, and asks nobody, when
nothing of an earlier boot is outstanding. An API server that does not answer is waited for.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return misfit(o.returnNode(c.Context(), slog.New(report.NewHandler(level(o.debug)))))
		},
	}
}

func (o *options) returnNode(ctx context.Context, logger *slog.Logger) error {
	now, err := o.thisBoot(ctx, logger)
	if err != nil {
		return err
	}
	record, err := o.host().ReadRecord()
	if err != nil {
		logger.Warn("reading the record: looking at the node instead", "err", err)
	}
	outstanding := record.Marked && record.Boot != now.id
	cfg, err := o.load()
	switch {
	case err != nil && outstanding:
		return err
	case err != nil: // the agent itself tells about its configuration
		logger.Warn("no usable configuration, and nothing of an earlier boot is outstanding", "err", err)
		return nil
	case !outstanding && (len(cfg.Boot.RemoveTaints) == 0 || record.Startup == now.id):
		logger.Info("nothing of an earlier boot is outstanding")
		return nil
	}
	p, err := o.wireInTime(ctx, cfg, now, logger)
	if err != nil {
		return err
	}
	if err := p.addSinks(logger); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait() // the last news are told
	defer stop()
	background.Go(func() { p.reporter.Run(running) })
	p.start(running, logger)
	p.renewal.look(running) // the machine may have been off for long
	return p.agent.ReturnNode(running)
}

// wireInTime waits for a kubeconfig that something else may still have to write: a boot does not fail for it.
func (o *options) wireInTime(
	ctx context.Context, cfg *config.Config, now boot, logger *slog.Logger,
) (*parts, error) {
	said := ""
	for {
		p, err := o.wire(cfg, wiring{bootUnit: true, podless: len(cfg.Boot.ReadyPods) == 0}, now, logger)
		if err == nil {
			return p, nil
		}
		if err.Error() != said {
			said = err.Error()
			logger.Warn("waiting for a way to the cluster", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(30 * time.Second):
		}
	}
}
