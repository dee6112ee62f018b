// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kured-agent/kured-agent/internal/fleet"
)

func releaseCommand(o *options) *cobra.Command {
	var yes, force bool
	c := &cobra.Command{
		Use:   "release NODE",
		Short: "Free the slot of a node, so that the next one may go",
		Long: `A node that does not come back from its reboot keeps its slot, and so stops the roll-out: what broke it may break
the next. This frees the slot by hand. Look at the node first.

It shows who holds the slot and what freeing it means, and asks. A node that may be draining at this moment is refused:
"kubectl kured hold NODE" makes it roll back and give its slot back by itself. Deleting the Node object of a machine
that is gone for good frees its slot too.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := o.client(false)
			if err != nil {
				return err
			}
			return release(c, client, nodeName(args[0]), yes, force)
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&force, "force", false, "also when the node is up and may be draining")
	return c
}

func release(c *cobra.Command, client *fleet.Client, name string, yes, force bool) error {
	slots, node, err := client.Held(c.Context(), name)
	if err != nil {
		return err
	}
	if len(slots) == 0 {
		if node == nil {
			return fmt.Errorf("node %q does not exist and holds no slot: \"%s status\" shows who holds one", name, spoken)
		}
		return say(c, "node %q holds no slot", name)
	}
	for _, slot := range slots {
		if err := releaseSlot(c, client, slot, node, yes, force); err != nil {
			return err
		}
	}
	return nil
}

func releaseSlot(c *cobra.Command, client *fleet.Client, slot fleet.Slot, node *fleet.Node, yes, force bool) error {
	risk := fleet.Weigh(slot, node)
	if err := say(c, "%s is held by node %s since %s, taken in boot %s.\n%s", slot.Name, slot.Holder,
		moment(slot.Since, time.Now()), orUnknown(slot.Boot), risk.Means); err != nil {
		return err
	}
	if risk.Refuse && !force {
		return fmt.Errorf("refusing to free slot %q: node %q may be draining; \"%s hold %s WHY\" makes it give the slot back, "+
			"--force frees it all the same", slot.Name, slot.Holder, spoken, slot.Holder)
	}
	if !yes {
		if err := confirm(c, fmt.Sprintf("Free %s? [y/N] ", slot.Name)); err != nil {
			return err
		}
	}
	freed, err := client.Free(c.Context(), slot)
	switch {
	case err != nil:
		return err
	case !freed:
		return say(c, "node %q had given %s back in the meantime", slot.Holder, slot.Name)
	}
	return say(c, "%s is free", slot.Name)
}

var errDeclined = errors.New("nothing was changed: it was not confirmed (--yes does not ask)")

// confirm reads one line. An interrupt ends it, and so does the end of the input.
func confirm(c *cobra.Command, question string) error {
	if _, err := fmt.Fprint(c.OutOrStdout(), question); err != nil {
		return err
	}
	answer := make(chan string, 1)
	go func() { answer <- firstLine(c.InOrStdin()) }()
	select {
	case line := <-answer:
		if line == "y" || line == "yes" {
			return nil
		}
	case <-c.Context().Done():
		if errors.Is(c.Context().Err(), context.DeadlineExceeded) {
			return c.Context().Err()
		}
	}
	_, _ = fmt.Fprintln(c.OutOrStdout())
	return errDeclined
}

func firstLine(r io.Reader) string {
	line, _ := bufio.NewReader(io.LimitReader(r, 100)).ReadString('\n')
	return strings.ToLower(strings.TrimSpace(line))
}

func moment(since, now time.Time) string {
	if since.IsZero() {
		return "an unknown time"
	}
	return fmt.Sprintf("%s (%s ago)", since.UTC().Format(time.RFC3339), duration.HumanDuration(max(0, now.Sub(since))))
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
