// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/fleet"
)

func poolsCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "pools",
		Short: "Show the pools, how many of their nodes may be away, and which are",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := o.client(false)
			if err != nil {
				return err
			}
			pools, err := client.Pools(c.Context())
			if err != nil {
				return err
			}
			return printPools(c.OutOrStdout(), pools)
		},
	}
	c.AddCommand(poolsSetCommand(o), poolsSyncCommand(o))
	return c
}

func poolsSetCommand(o *options) *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use:   "set POOL N",
		Short: "Let N nodes of a pool be away at a time; 0 stops it",
		Long: `Writes how many nodes of the pool may be away at a time, and creates the pool where it is missing. With a smaller
number nobody loses a slot: no new one is given out until there are fewer holders. "kubectl apply" of the manifests
restores what those say.`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			n, err := fleet.ParseSlots(args[1])
			if err := usage(errors.Join(err, fleet.CheckPool(args[0]))); err != nil {
				return err
			}
			client, err := o.client(dryRun)
			if err != nil {
				return err
			}
			change, err := client.SetSlots(c.Context(), args[0], n)
			if err != nil {
				return err
			}
			return said(c, args[0], change, "", dryRun)
		},
	}
	dryRunFlag(c, &dryRun)
	return c
}

func poolsSyncCommand(o *options) *cobra.Command {
	var (
		pool, percentage, selector string
		dryRun                     bool
	)
	c := &cobra.Command{
		Use:   "sync --pool POOL --max-unavailable PERCENT [--selector LABELS]",
		Short: "Count the nodes of a pool, and let a percentage of them be away at a time",
		Long: `Counts the nodes of a pool and writes the percentage of it as a number, rounded down, but never less than 1. The
agents do not count: run this again when the number of nodes has changed, for instance in a CronJob.

The pools "control-plane" and "default" need no --selector: without one the nodes with and without the role
control-plane are counted. A node whose own configuration names another pool is counted there too. The members of any
other pool are known to their own configuration only, so label them.

When no node is found nothing is written: a mistyped selector must not decide how many nodes go.`,
		Example: "  kubectl kured pools sync --pool workers --max-unavailable 10% --selector node-role=worker",
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case pool == "":
				return usage(seeHelp(c, errors.New("--pool is missing")))
			case percentage == "":
				return usage(seeHelp(c, errors.New("--max-unavailable is missing")))
			}
			percent, err := fleet.ParsePercent(percentage)
			members, problem := fleet.MembersOf(pool, selector)
			if err := usage(errors.Join(fleet.CheckPool(pool), err, problem)); err != nil {
				return err
			}
			client, err := o.client(dryRun)
			if err != nil {
				return err
			}
			nodes, err := client.Count(c.Context(), members)
			if err != nil {
				return err
			}
			if nodes == 0 {
				return fmt.Errorf("counting the nodes of pool %q: there is none, so nothing was changed "+
					"(is --selector right? \"%s pools set\" needs no nodes)", pool, spoken)
			}
			n := fleet.Resolve(percent, nodes)
			change, err := client.SetSlots(c.Context(), pool, n)
			if err != nil {
				return err
			}
			if fleet.LosesQuorum(pool, n, nodes) {
				_, _ = fmt.Fprintf(c.ErrOrStderr(), "warning: %d of %d control-plane nodes away at a time leave etcd without "+
					"a majority, if it runs on them\n", n, nodes)
			}
			return said(c, pool, change, fmt.Sprintf(", %d%% of %s", percent, count(nodes, "node")), dryRun)
		},
	}
	flags := c.Flags()
	flags.StringVar(&pool, "pool", "", "pool to write")
	flags.StringVar(&percentage, "max-unavailable", "", "how many of its nodes may be away at a time, from 1% to 100%")
	flags.StringVarP(&selector, "selector", "l", "", "labels of its nodes")
	dryRunFlag(c, &dryRun)
	return c
}

func dryRunFlag(c *cobra.Command, dryRun *bool) {
	c.Flags().BoolVar(dryRun, "dry-run", false, "say what would be done; the API server checks it and changes nothing")
}

// said tells what became of a pool.
func said(c *cobra.Command, pool string, change fleet.Change, because string, dryRun bool) error {
	slots := *change.After
	if slots == "1" {
		slots += " slot"
	} else {
		slots += " slots"
	}
	was, note := "", ""
	switch {
	case !change.Changed():
		was = ", as before"
	case change.Before == nil:
		was = ", and is new"
	default:
		was = fmt.Sprintf(", before %q", *change.Before)
	}
	if dryRun && change.Changed() {
		note = " (dry run: nothing was changed)"
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "pool %q has %s%s%s%s\n", pool, slots, because, was, note)
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
