// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/report"
)

func requestCommand() *cobra.Command {
	var clear, all bool
	c := &cobra.Command{
		Use:   "request ID [REASON]",
		Short: "Ask the running agent for a reboot, or take the request back",
		Long: `Tells the running agent over D-Bus that a reboot is required. ID names the cause, so that it can be taken back
and so that the same cause after the reboot does not reboot again; REASON is for people. The agent does the rest in its
own time: turn, window, gates and drain apply. A request is gone after a boot.`,
		Example: `  kured-agent request microcode-20261110 "new CPU microcode"
  kured-agent request --clear microcode-20261110
  kured-agent request --clear --all`,
		Args: func(c *cobra.Command, args []string) error {
			switch {
			case all && !clear:
				return errors.New("--all takes requests back: give --clear too")
			case all:
				return cobra.NoArgs(c, args)
			case clear && len(args) > 1:
				return errors.New("--clear takes an ID and no reason")
			case clear:
				return cobra.ExactArgs(1)(c, args)
			}
			return cobra.RangeArgs(1, 2)(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), onceTimeout)
			defer cancel()
			return request(ctx, c, args, clear)
		},
	}
	c.Flags().BoolVar(&clear, "clear", false, "take the request back")
	c.Flags().BoolVar(&all, "all", false, "with --clear: take all requests back")
	return c
}

func request(ctx context.Context, c *cobra.Command, args []string, clear bool) error {
	args = append(args, "", "")
	id, reason := args[0], args[1]
	call := bus.Call{
		Destination: report.BusName, Path: report.ObjectPath, NoAutoStart: true,
		Member: report.ObjectInterface + ".RequireReboot", Args: []any{id, reason},
	}
	if clear {
		call.Member, call.Args = report.ObjectInterface+".ClearReboot", []any{id}
	}
	if _, err := dial(ctx).Call(ctx, call); err != nil {
		return fmt.Errorf("asking the agent (is kured-agent.service running?): %w", err)
	}
	said := "requested; see: kured-agent status"
	if clear {
		said = "taken back"
	}
	_, err := fmt.Fprintln(c.OutOrStdout(), said)
	return err
}
