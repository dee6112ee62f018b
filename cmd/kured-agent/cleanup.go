// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/report"
)

func cleanupCommand(o *options) *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of ours from the Node and free its slot",
		Long: `Removes the taint, the cordon (if the agent set it), the marker annotations and the slot of this node. The
packages do this on removal. The agent must be stopped; stopping it does the same.`,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			if err := o.cleanUp(ctx, slog.New(report.NewHandler(level(o.debug)))); err != nil {
				return misfit(err)
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), "clean: no taint, cordon or slot of this agent is left")
			return err
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "give up after this time")
	return c
}

func (o *options) cleanUp(ctx context.Context, logger *slog.Logger) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	unlock, err := o.host().Lock("agent.lock")
	if err != nil {
		return fmt.Errorf("%w; stop it first, which cleans up too: systemctl stop kured-agent", err)
	}
	defer unlock()
	now, err := o.thisBoot(ctx, logger)
	if err != nil {
		return err
	}
	p, err := o.wire(cfg, wiring{bootUnit: true, podless: true}, now, logger)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	p.start(running, logger)
	return p.agent.CleanUp(ctx)
}
