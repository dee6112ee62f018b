// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/report"
	"github.com/kured-agent/kured-agent/internal/units"
)

func statusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Say what the running agent does, and why",
		Long: `Asks the running agent over D-Bus: phase, why, until when, reasons, sources, taint, slot and the next window.
When no agent answers it says what the disk knows, and exits with 3.`,
		RunE: func(c *cobra.Command, _ []string) error { return status(c, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	return c
}

func status(c *cobra.Command, asJSON bool) error {
	ctx, cancel := context.WithTimeout(c.Context(), onceTimeout)
	defer cancel()
	b := dial(ctx)
	u, err := report.ReadObject(ctx, b)
	if err != nil {
		return statusDown(ctx, c, b, err)
	}
	if asJSON {
		out := json.NewEncoder(c.OutOrStdout())
		out.SetIndent("", "  ")
		return out.Encode(u)
	}
	_, err = fmt.Fprint(c.OutOrStdout(), report.Text(u, time.Now()))
	return err
}

// dial connects to the bus for a command that asks once.
func dial(ctx context.Context) *bus.Bus {
	b := bus.New(bus.Options{})
	go func() { _ = b.Run(ctx) }()
	b.Await(ctx, 3*time.Second)
	return b
}

func statusDown(ctx context.Context, c *cobra.Command, b *bus.Bus, cause error) error {
	o := optionsOf(c)
	down := report.Down{Why: cause.Error()}
	if state, sub, err := units.New(b).Active(ctx, agentUnit); err == nil {
		down.Why = fmt.Sprintf("%s is %s (%s)", agentUnit, state, sub)
	}
	h := o.host()
	down.Record, _ = h.ReadRecord() // unreadable for others than the agent and root: then it says nothing
	now, _ := o.thisBoot(ctx, slog.New(slog.DiscardHandler))
	down.Boot = now.id
	if _, err := fmt.Fprint(c.OutOrStdout(), report.DownText(down, time.Now())); err != nil {
		return err
	}
	return &codeError{code: exitDown}
}

// optionsOf reads back the flags of the root command.
func optionsOf(c *cobra.Command) *options {
	get := func(name string) string { s, _ := c.Flags().GetString(name); return s }
	return &options{config: get("config"), root: get("root"), state: get("state-dir"), run: get("run-dir")}
}
