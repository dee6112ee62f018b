// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/report"
	"github.com/kured-agent/kured-agent/internal/units"
)

func checkCommand(o *options) *cobra.Command {
	var offline bool
	c := &cobra.Command{
		Use:   "check-config",
		Short: "Check the configuration, the credential and the Node name",
		Long: `Reads the configuration and prints every problem with file, line and key. Then it checks the kubeconfig, and
asks the API server whether the Node is this machine and every right is there; --offline leaves that out, and the
kubeconfig may be missing yet.

Exit codes: 0 fine, 1 wrong, 2 usage.`,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), onceTimeout)
			defer cancel()
			name, note, err := o.check(ctx, offline)
			if err != nil {
				return &codeError{code: exitFailed, err: err}
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: fine, for node %s\n%s", o.config, name, note)
			return err
		},
	}
	c.Flags().BoolVar(&offline, "offline", false, "do not ask the API server")
	return c
}

// check returns the name of the Node, and a line about what is still to be done.
func (o *options) check(ctx context.Context, offline bool) (name, note string, err error) {
	cfg, err := o.load()
	if err != nil {
		return "", "", err
	}
	p, err := o.wire(cfg, wiring{dry: true}, boot{}, slog.New(report.NewHandler(slog.LevelError)))
	if _, refused := errors.AsType[*kube.RefusedError](err); refused && offline && missing(cfg.Cluster.Kubeconfig) {
		name, err = kube.FindNodeName(o.root, cfg.Node.Name, "")
		return name, fmt.Sprintf("kubeconfig %q is not there yet\n", cfg.Cluster.Kubeconfig), err
	}
	if err != nil {
		return "", "", err
	}
	if offline {
		return p.name, "", nil
	}
	err = (&identity{p: p}).Prove(ctx)
	var proof *kube.ProofError
	if err != nil && !errors.As(err, &proof) {
		return "", "", fmt.Errorf("asking the API server (--offline leaves this out): %w", err)
	}
	return p.name, p.spareNote(ctx) + o.besideNote(ctx), err
}

// spareNote says that the role of the agents still has the rights that the kubelet's identity is there to do without.
func (p *parts) spareNote(ctx context.Context) string {
	if p.pods == p.kube {
		return ""
	}
	spare, err := p.kube.Spare(ctx)
	if err != nil || len(spare) == 0 {
		return ""
	}
	return fmt.Sprintf("the agent's own credential may still %s: once every agent has [drain] identity = \"kubelet\", "+
		"kubectl apply -f packaging/kubernetes/optional/identity-kubelet.yaml takes that away\n", strings.Join(spare, " and "))
}

// besideNote names the programs that reboot this host by themselves, a line each.
func (o *options) besideNote(ctx context.Context) string {
	found, err := (&managers{root: o.root, units: units.New(dial(ctx))}).Find(ctx)
	if err != nil {
		found = append(found, fmt.Sprintf("other programs that reboot this host are not all known: %v", err))
	}
	return strings.Join(append(found, ""), "\n")
}

func missing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}
