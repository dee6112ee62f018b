// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kured-agent/kured-agent/internal/config"
	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/report"
	"github.com/kured-agent/kured-agent/internal/units"
)

const (
	agentGroup     = "kured-agent" // may read the credential
	credentialMode = 0o640
	maxCredential  = 1 << 20
	standardInput  = "-"
)

// enrolment is what the flags of enroll say.
type enrolment struct {
	file, server         string
	offline, allowExcess bool
}

func enrollCommand(o *options) *cobra.Command {
	var e enrolment
	c := &cobra.Command{
		Use:   "enroll --kubeconfig FILE",
		Short: "Prove a credential for this node, and install it",
		Long: `Takes the kubeconfig that "kubectl kured enroll NODE" makes, from a file or with "-" from standard input. It asks
the API server whether the credential is for this machine, has every right that the agent needs, and none that it must not
have. Then it writes the kubeconfig to the place that the configuration names, for root and the group kured-agent, and
says what is next. A credential that does not prove itself changes nothing.

A file must not stay behind where others can read it. Run it again to replace a credential.`,
		Example: `  kubectl kured enroll worker-1 | ssh worker-1 sudo kured-agent enroll --kubeconfig -
  kured-agent enroll --kubeconfig worker-1.kubeconfig --server auto`,
		RunE: func(c *cobra.Command, _ []string) error {
			if e.file == "" {
				return wrongUsage(c, errors.New("--kubeconfig is missing"))
			}
			return o.enroll(c, e)
		},
	}
	flags := c.Flags()
	flags.StringVar(&e.file, "kubeconfig", "", `file to install, or "-" for standard input`)
	flags.StringVar(&e.server, "server", "", `URL of the API server instead of the one in the file; "auto" takes URL and CA from
the configuration of this host's kubelet, as does a file that names none`)
	flags.BoolVar(&e.offline, "offline", false, "install it without asking the API server")
	flags.BoolVar(&e.allowExcess, "allow-excess", false,
		"install a credential that may do more than it should, and say what")
	return c
}

func (o *options) enroll(c *cobra.Command, e enrolment) error {
	cfg, err := o.load()
	if err != nil {
		return err
	}
	target := cfg.Cluster.Kubeconfig
	if o.root == "/" && os.Geteuid() != 0 {
		return fmt.Errorf("installing %q for root and the group %s: only root may: sudo kured-agent enroll", target, agentGroup)
	}
	gid, err := o.host().GroupID(agentGroup)
	if err != nil {
		return fmt.Errorf("%w (the package makes the group: is it installed?)", err)
	}
	prepared, err := o.prepare(c, e)
	if err != nil {
		return err
	}
	staged, err := files.Stage(target, credentialMode, gid, prepared.Content)
	if err != nil {
		return err
	}
	defer staged.Discard()
	ctx, cancel := context.WithTimeout(c.Context(), onceTimeout)
	defer cancel()
	proven, err := o.proveStaged(ctx, c, cfg, staged.Name, e)
	if refused, ok := errors.AsType[*kube.RefusedError](err); ok {
		refused.Path = e.name()
	}
	switch {
	case noAnswer(err):
		return fmt.Errorf("asking the API server %s (from %s; --server names another, --offline leaves this out): %w",
			prepared.Server, prepared.From, err)
	case err != nil:
		return err
	}
	if err := staged.Commit(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "installed %s for node %s\n%vAPI server: %s (from %s)\nnext:       %s\n",
		target, proven.node, proven, prepared.Server, prepared.From, o.nextStep(ctx))
	return err
}

// noAnswer tells a server that could not be asked from one that answered, and from what never got so far.
func noAnswer(err error) bool {
	var (
		refused *kube.RefusedError
		proof   *kube.ProofError
	)
	return err != nil && !errors.As(err, &refused) && !errors.As(err, &proof) && !errors.Is(err, errNodeName)
}

func (e enrolment) name() string {
	if e.file == standardInput {
		return "standard input"
	}
	return e.file
}

func (o *options) prepare(c *cobra.Command, e enrolment) (kube.Prepared, error) {
	installation := kube.Installation{Server: e.server, Root: o.root}
	if e.file == standardInput {
		content, err := readInput(c.Context(), c.InOrStdin())
		if err != nil {
			return kube.Prepared{}, err
		}
		return kube.Prepare(content, installation)
	}
	content, err := files.Read(e.file, maxCredential)
	if err != nil {
		return kube.Prepared{}, err
	}
	if installation.Dir, err = filepath.Abs(filepath.Dir(e.file)); err != nil {
		return kube.Prepared{}, err
	}
	if info, err := os.Stat(e.file); err == nil && info.Mode().Perm()&0o007 != 0 {
		note(c, "everybody on this host could read %s (mode %04o): delete it, or chmod 0600 it", e.file, info.Mode().Perm())
	}
	return kube.Prepare(content, installation)
}

// readInput waits as long as it takes: before the pipe somebody may log in to the cluster. An interrupt ends it.
func readInput(ctx context.Context, r io.Reader) ([]byte, error) {
	type input struct {
		content []byte
		err     error
	}
	done := make(chan input, 1)
	go func() {
		content, err := io.ReadAll(io.LimitReader(r, maxCredential+1))
		done <- input{content, err}
	}()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("reading standard input: %w", ctx.Err())
	case in := <-done:
		switch {
		case in.err != nil:
			return nil, fmt.Errorf("reading standard input: %w", in.err)
		case len(in.content) == 0:
			return nil, errors.New("reading standard input: nothing came; did the command before the pipe fail?")
		case len(in.content) > maxCredential:
			return nil, errors.New("reading standard input: more than 1 MiB is no kubeconfig")
		}
		return in.content, nil
	}
}

// proven is what is known about a credential.
type proven struct {
	node, user, of string // the Node, whose credential it is, and what was proven of it
	expires        time.Time
}

func (p proven) String() string {
	until := ""
	if !p.expires.IsZero() {
		until = ", valid until " + p.expires.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("credential: %s%s\nproven:     %s\n", p.user, until, p.of)
}

// proveStaged proves the very file that will be installed.
func (o *options) proveStaged(
	ctx context.Context, c *cobra.Command, cfg *config.Config, path string, e enrolment,
) (p proven, err error) {
	client, err := kube.Connect(kube.Options{
		Kubeconfig: path, UserAgent: productName + "/" + version, Logger: slog.New(report.NewHandler(slog.LevelWarn)),
		PodsElsewhere: cfg.Drain.Identity == config.IdentityKubelet,
	})
	if err != nil {
		return p, err
	}
	defer client.CloseIdle()
	bound := client.BoundNode()
	if p.node, err = kube.FindNodeName(o.root, cfg.Node.Name, bound); err != nil {
		return p, fmt.Errorf("%w: %w", errNodeName, err)
	}
	if bound == "" && cfg.Node.Name == "" {
		note(c, "the credential does not say for which Node it is, and the agent may not read the files of the kubelet: "+
			"set [node] name = %q", p.node)
	}
	p.expires = client.Expires()
	if e.offline {
		p.user, p.of = "unknown", "nothing; later: runuser -u kured-agent -- kured-agent check-config"
		return p, nil
	}
	p.of = "this machine, every right of an agent, and no other"
	if e.allowExcess {
		p.of = "this machine, every right of an agent"
	}
	p.user, err = o.proveOnline(ctx, c, client, p.node, e)
	return p, err
}

// proveOnline returns whom the API server takes the credential for.
func (o *options) proveOnline(
	ctx context.Context, c *cobra.Command, client *kube.Client, name string, e enrolment,
) (user string, err error) {
	id, err := o.host().MachineID()
	if err != nil {
		return "", err
	}
	if user, err = client.Username(ctx); err != nil {
		return "", err
	}
	if err := client.Prove(ctx, name, id); err != nil {
		return "", err
	}
	if err := client.ProveAdmitted(ctx, name); err != nil {
		return "", err
	}
	err = client.ProveConfined(ctx, name)
	excess, ok := errors.AsType[*kube.ProofError](err)
	switch {
	case ok && e.allowExcess:
		for _, line := range excess.Lines() {
			note(c, "%s", line)
		}
		return user, nil
	case ok:
		excess.Problems = append(excess.Problems, "it is not installed; --allow-excess installs it all the same")
	}
	return user, err
}

func note(c *cobra.Command, format string, args ...any) {
	_, _ = fmt.Fprintf(c.ErrOrStderr(), "note: "+format+"\n", args...)
}

// nextStep is what is left to do.
func (o *options) nextStep(ctx context.Context) string {
	state, _, err := units.New(dial(ctx)).Active(ctx, agentUnit)
	if err == nil && state != "inactive" && state != "failed" {
		return "systemctl reload kured-agent"
	}
	return fmt.Sprintf("look into %s, and then: systemctl enable --now kured-agent", o.config)
}
