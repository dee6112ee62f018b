// SPDX-License-Identifier: Apache-2.0

// Command kubectl-kured is the admin's side of kured-agent: a kubectl plugin that shows and steers all nodes at once.
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

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"

	"github.com/kured-agent/kured-agent/internal/fleet"
)

// version is set by the linker.
var version = "dev"

// Exit codes, as in kubectl-kured(1).
const (
	exitFine   = 0
	exitFailed = 1
	exitUsage  = 2
)

const (
	programName = "kubectl-kured"
	spoken      = "kubectl kured"

	// requestTimeout leaves time for a credential plugin that opens a browser.
	requestTimeout = 2 * time.Minute
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
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", spoken, err)
	if _, wrong := errors.AsType[*usageError](err); wrong {
		return exitUsage
	}
	return exitFailed
}

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// options are the flags that every command knows.
type options struct {
	kubeconfig, context, namespace string
}

func newRoot() *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   programName,
		Short: "Shows and steers the reboots of all nodes",
		Long: `kubectl kured shows which nodes wait for a reboot by kured-agent and which are away, sets how many may be away at a
time, and holds back one node or all of them. It uses your kubeconfig, as kubectl does.

What is going on?            kubectl kured status
Let no further node go:      kubectl kured pause "incident 4711"
Go on:                       kubectl kured resume
Hold one node back:          kubectl kured hold NODE "replacing a disk"
Two nodes at a time:         kubectl kured pools set default 2
Give a node its credential:  kubectl kured enroll NODE | ssh NODE sudo kured-agent enroll --kubeconfig -`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: spoken},
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          help,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(seeHelp(c, err)) })
	flags := root.PersistentFlags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "path of the kubeconfig (default: KUBECONFIG, else ~/.kube/config)")
	flags.StringVar(&o.context, "context", "", "context of the kubeconfig (default: its current one)")
	flags.StringVarP(&o.namespace, "namespace", "n", fleet.DefaultNamespace, "namespace of the slots and pools")
	root.AddCommand(statusCommand(o), poolsCommand(o), pauseCommand(o), resumeCommand(o), holdCommand(o), unholdCommand(o),
		releaseCommand(o), enrollCommand(o), versionCommand())
	strict(root)
	return root
}

func help(c *cobra.Command, _ []string) error { return c.Help() }

// strict makes a wrong number of arguments, or a word that is no command, a usage error. No argument is a file.
func strict(c *cobra.Command) {
	check := c.Args
	if check == nil {
		check = cobra.NoArgs
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usage(seeHelp(c, err))
		}
		return nil
	}
	c.ValidArgsFunction = cobra.NoFileCompletions
	for _, sub := range c.Commands() {
		strict(sub)
	}
}

func seeHelp(c *cobra.Command, err error) error {
	return fmt.Errorf("%w; see %s --help", err, c.CommandPath())
}

// client connects as kubectl would: the same files, contexts and credential plugins, and inside of a pod the service
// account.
func (o *options) client(dryRun bool) (*fleet.Client, error) {
	config, err := o.restConfig()
	if err != nil {
		return nil, err
	}
	return fleet.New(config, fleet.Options{Namespace: o.namespace, DryRun: dryRun})
}

func (o *options) restConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: o.context}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) || err != nil && nothingIn(rules) { // with --context the first says nothing
		return nil, errors.New("there is no kubeconfig: give --kubeconfig or set KUBECONFIG")
	}
	if err != nil {
		where := o.kubeconfig
		if where == "" {
			where = strings.Join(rules.Precedence, ", ")
		}
		return nil, fmt.Errorf("reading kubeconfig %q: %w (--kubeconfig and --context choose another)", where, err)
	}
	config.UserAgent = programName + "/" + version
	config.Timeout = requestTimeout
	return config, nil
}

func nothingIn(rules *clientcmd.ClientConfigLoadingRules) bool {
	loaded, err := rules.Load()
	return err == nil && clientcmdapi.IsConfigEmpty(loaded)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), programName, version)
			return err
		},
	}
}
