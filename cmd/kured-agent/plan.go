// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/internal/report"
)

func planCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "plan",
		Short: "Say what the agent would do next, and do nothing",
		Long: `Observes everything the running agent does (sources, Node, slot, windows, gates, inhibitors) and prints the
decision. It reads the Node from the API server, and changes nothing.`,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), onceTimeout)
			defer cancel()
			return misfit(o.dryRun(ctx, c.OutOrStdout()))
		},
	}
}

func (o *options) dryRun(ctx context.Context, out io.Writer) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	logger := slog.New(report.NewHandler(slog.LevelError))
	now, err := o.thisBoot(ctx, logger)
	if err != nil {
		return err
	}
	p, err := o.wire(cfg, wiring{sources: true, dry: true}, now, logger)
	if err != nil {
		return err
	}
	p.start(ctx, logger)
	observed, step := p.agent.Decide(ctx)
	return writePlan(out, p.name, observed, step)
}

func writePlan(out io.Writer, name string, o plan.Observed, step plan.Step) error {
	next := step.Action.String()
	if step.Action == plan.None {
		next = "nothing"
	}
	_, err := fmt.Fprintf(out, "node    %s\nphase   %s\nnext    %s\nwhy     %s\n", name, step.Phase, next, step.Why)
	if err == nil && step.Wake > o.Uptime {
		_, err = fmt.Fprintf(out, "until   %s, when only time has to pass\n",
			o.Now.Add(step.Wake-o.Uptime).Format("Mon 2006-01-02 15:04:05 -0700"))
	}
	for _, r := range o.Reasons {
		if err == nil {
			_, err = fmt.Fprintf(out, "reason  %s: %s\n", r.Source, plan.Summary([]plan.Reason{r}))
		}
	}
	return err
}
