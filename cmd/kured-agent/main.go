// SPDX-License-Identifier: Apache-2.0

// Command kured-agent reboots the Kubernetes node it runs on when that is required, safely and from outside any pod.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // hosts without tzdata still know the zones of their windows

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/kured-agent/kured-agent/internal/config"
	"github.com/kured-agent/kured-agent/internal/kube"
)

// version is set by the linker.
var version = "dev"

// Exit codes, as in kured-agent(8).
const (
	exitFine    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitDown    = 3  // status: no agent answers
	exitMisfit  = 78 // EX_CONFIG: configuration or identity that cannot work; the units do not restart on it
	productName = "kured-agent"
)

func main() {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // client-go's own words say nothing that our errors do not
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute is main without the process: it returns the exit code.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitFine
	}
	coded, ok := errors.AsType[*codeError](err)
	if !ok {
		coded = &codeError{code: exitFailed, err: err}
	}
	if coded.err != nil {
		printError(stderr, coded.err)
	}
	return coded.code
}

// codeError is an error with an exit code of its own. One without err was told already.
type codeError struct {
	code int
	err  error
}

func (e *codeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }

// misfit marks errors that no retry can mend.
func misfit(err error) error {
	var (
		wrong   *config.Error
		refused *kube.RefusedError
	)
	if errors.As(err, &wrong) || errors.As(err, &refused) || errors.Is(err, errNodeName) {
		return &codeError{code: exitMisfit, err: err}
	}
	return err
}

// lister is a *kube.RefusedError or a *kube.ProofError.
type lister interface {
	error
	Lines() []string
}

// printError writes lists of problems one a line, as they are.
func printError(w io.Writer, err error) {
	if wrong, ok := errors.AsType[*config.Error](err); ok {
		_, _ = fmt.Fprintln(w, strings.TrimRight(wrong.Error(), "\n"))
		return
	}
	if list, ok := errors.AsType[lister](err); ok {
		for _, line := range list.Lines() {
			_, _ = fmt.Fprintf(w, "%s: %s\n", productName, line)
		}
		return
	}
	_, _ = fmt.Fprintf(w, "%s: %v\n", productName, err)
}

// options are the flags that every command knows.
type options struct {
	config string
	debug  bool
	root   string // of the host's files; for tests
	state  string
	run    string
	booted time.Duration // uptime at which the boot began that a test plays; zero on a real machine

	renewAfter time.Duration // age at which a token is renewed; zero but in tests
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   productName,
		Short: "Reboots this Kubernetes node when that is required",
		Long: `kured-agent learns that this host needs a reboot, taints its Node, waits for its turn and its maintenance
window, cordons and drains the node, reboots it through logind, and gives it back after the boot.

Give it a credential:     kured-agent enroll --kubeconfig FILE
It is run by systemd:     systemctl enable --now kured-agent
See what it does:         kured-agent status
See what it would do:     kured-agent plan
Hold this node back:      kubectl kured hold NODE "why"
Stop it, undoing all:     systemctl disable --now kured-agent`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(wrongUsage)
	root.Args = usageArgs(nil)
	flags := root.PersistentFlags()
	flags.StringVarP(&o.config, "config", "c", "/etc/kured/config.toml",
		"configuration file; config.d/*.toml beside it is read too")
	flags.BoolVar(&o.debug, "debug", false, "log every change of the why, not only of the phase")
	flags.StringVar(&o.root, "root", "/", "root of the host's files")
	flags.StringVar(&o.state, "state-dir", "/var/lib/kured-agent", "state directory, below the root")
	flags.StringVar(&o.run, "run-dir", "/run/kured-agent", "runtime directory, below the root")
	flags.DurationVar(&o.booted, "booted", 0, "uptime at which the boot began")
	flags.DurationVar(&o.renewAfter, "renew-after", 0, "age at which the token is renewed")
	for _, hidden := range []string{"root", "state-dir", "run-dir", "booted", "renew-after"} {
		_ = flags.MarkHidden(hidden)
	}
	root.AddCommand(runCommand(o), bootCommand(o), shutdownCommand(o), statusCommand(), planCommand(o), checkCommand(o),
		enrollCommand(o), requestCommand(), cleanupCommand(o), versionCommand())
	for _, c := range root.Commands() {
		c.Args = usageArgs(c.Args)
		c.ValidArgsFunction = cobra.NoFileCompletions // no argument is a file
	}
	return root
}

func wrongUsage(c *cobra.Command, err error) error {
	return &codeError{code: exitUsage, err: fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
}

// usageArgs makes a wrong number of arguments, or a word that is no command, a usage error.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		check = cobra.NoArgs
	}
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return wrongUsage(c, err)
		}
		return nil
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), productName, version)
			return err
		},
	}
}

func level(debug bool) slog.Level {
	if debug {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
