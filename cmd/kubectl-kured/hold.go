// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/fleet"
	"github.com/kured-agent/kured-agent/internal/text"
)

func pauseCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "pause WHY",
		Short: "Let no further node go",
		Long: `Gives out no new slot in any pool, until "kubectl kured resume". Nodes that hold one finish; "kubectl kured hold"
stops one of those.`,
		Example: `  kubectl kured pause "incident 4711"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			why, err := fleet.CheckWhy(args[0])
			if err != nil {
				return usage(err)
			}
			client, err := o.client(false)
			if err != nil {
				return err
			}
			change, err := client.Pause(c.Context(), why)
			if err != nil {
				return err
			}
			if change.Before != nil && change.Changed() {
				return say(c, "paused: %s\nIt was paused before: %s", why, quote(*change.Before))
			}
			return say(c, "paused: %s\nNodes that hold a slot finish: \"%s status\" shows them", why, spoken)
		},
	}
}

func resumeCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "resume",
		Short: "Give out slots again",
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := o.client(false)
			if err != nil {
				return err
			}
			change, err := client.Resume(c.Context())
			if err != nil {
				return err
			}
			if !change.Changed() {
				return say(c, "it was not paused")
			}
			return say(c, "resumed; it was paused: %s", quote(*change.Before))
		},
	}
}

func holdCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "hold NODE WHY",
		Short: "Hold one node back",
		Long: `Annotates the Node, and its agent neither takes a slot nor goes on. One that holds a slot uncordons the node and
gives the slot back within half a minute, unless logind has accepted the reboot.`,
		Example: `  kubectl kured hold worker-1 "replacing a disk"`,
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			why, err := fleet.CheckWhy(args[1])
			if err != nil {
				return usage(err)
			}
			client, err := o.client(false)
			if err != nil {
				return err
			}
			name := nodeName(args[0])
			change, err := client.Hold(c.Context(), name, &why)
			if err != nil {
				return err
			}
			if change.Before != nil && change.Changed() {
				return say(c, "node %q is held: %s\nIt was held before: %s", name, why, quote(*change.Before))
			}
			return say(c, "node %q is held: %s", name, why)
		},
	}
}

func unholdCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "unhold NODE",
		Short: "Let a held node go",
		Long: `Removes the annotation. The agent sees that within ten minutes; "systemctl reload kured-agent" on the node makes it
look at once.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := o.client(false)
			if err != nil {
				return err
			}
			name := nodeName(args[0])
			change, err := client.Hold(c.Context(), name, nil)
			if err != nil {
				return err
			}
			if !change.Changed() {
				return say(c, "node %q was not held", name)
			}
			return say(c, "node %q is held no longer; it was: %s", name, quote(*change.Before))
		},
	}
}

// nodeName takes "node/worker-1" too, as kubectl prints it.
func nodeName(arg string) string { return strings.TrimPrefix(arg, "node/") }

func say(c *cobra.Command, format string, args ...any) error {
	_, err := fmt.Fprintf(c.OutOrStdout(), format+"\n", args...)
	return err
}

// quote shows what others wrote.
func quote(s string) string { return fmt.Sprintf("%q", text.Line(s, 200)) }
