// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kured-agent/kured-agent/internal/fleet"
	"github.com/kured-agent/kured-agent/internal/text"
)

func statusCommand(o *options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the pools, and every node that waits, is away or is held",
		Long: `Shows the pools with their slots, and the nodes that carry the mark of kured-agent, hold a slot or are held. It
reads only.

PHASE is what the cluster shows; "kured-agent status" on the node says more:
  waiting     a reboot is required, and it has no slot yet
  has turn    holds a slot, and is not cordoned
  cordoned    holds a slot, drains or is about to reboot
  down        holds a slot and is not Ready: it reboots, or does not come back
  returning   has rebooted, and is not given back yet
  lost slot   cordoned by its agent, and somebody took its slot away
  gone        holds a slot, and there is no Node of this name
  idle        needs no reboot, and is held`,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := o.client(false)
			if err != nil {
				return err
			}
			s, err := client.Status(c.Context())
			if err != nil {
				return err
			}
			if asJSON {
				out := json.NewEncoder(c.OutOrStdout())
				out.SetIndent("", "  ")
				return out.Encode(s)
			}
			return printStatus(c.OutOrStdout(), s, time.Now())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print everything as JSON")
	return c
}

func printStatus(w io.Writer, s fleet.Status, now time.Time) error {
	if s.Problem != "" {
		if _, err := fmt.Fprintf(w, "%s\n\n", s.Problem); err != nil {
			return err
		}
	}
	if err := printPools(w, s.Pools); err != nil {
		return err
	}
	if len(s.Nodes) == 0 {
		_, err := fmt.Fprint(w, "\nno node waits for a reboot, none is away, none is held\n")
		return err
	}
	const shown = 60 // bytes of a text that others wrote
	rows := [][]string{{"NODE", "READY", "CORDON", "PHASE", "SLOT", "SINCE", "HELD", "REASONS"}}
	for _, n := range s.Nodes {
		ready := "no"
		if n.Ready {
			ready = "yes"
		}
		rows = append(rows, []string{n.Name, ready, string(n.Cordon), string(n.Phase), strings.Join(n.Slots, ","),
			age(n.Since, now), text.Shorten(n.Hold, shown), text.Shorten(n.Reasons, shown)})
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return printTable(w, rows)
}

func printPools(w io.Writer, p fleet.Pools) error {
	if p.Paused {
		why := p.PausedWhy
		if why != "" {
			why = ": " + why
		}
		if _, err := fmt.Fprintf(w, "PAUSED%s\nNo slot is given out. \"%s resume\" goes on.\n\n", why, spoken); err != nil {
			return err
		}
	}
	rows := [][]string{{"POOL", "SLOTS", "TAKEN", "BY"}}
	for _, pool := range p.Pools {
		n := fmt.Sprint(pool.N)
		if pool.Problem != "" {
			n = "none (" + pool.Problem + ")"
		}
		rows = append(rows, []string{pool.Name, n, fmt.Sprint(len(pool.Holders)), holders(pool.Holders)})
	}
	return printTable(w, rows)
}

func holders(names []string) string {
	const shown = 5
	if more := len(names) - shown; more > 0 {
		names = append(slices.Clone(names[:shown]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// printTable prints what is empty as "-", so that columns stay countable.
func printTable(w io.Writer, rows [][]string) error {
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(out, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return out.Flush()
}

func age(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(0, now.Sub(since)))
}
