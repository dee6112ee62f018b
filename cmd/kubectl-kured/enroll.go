// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/fleet"
)

const (
	serverAuto = "auto"
	maxCA      = 1 << 20

	// enrolledAtOnce keeps five thousand nodes to a minute, also far from the API server.
	enrolledAtOnce = 8
)

// enrolment is what the command line of enroll says, and what it works with.
type enrolment struct {
	nodes            []string
	all              bool
	selector, output string
	server, ca       string
	lifetime, wait   time.Duration
	certificate      bool
	endpoint         fleet.Endpoint
	client           *fleet.Client
	mu               sync.Mutex // of standard error
}

func enrollCommand(o *options) *cobra.Command {
	e := &enrolment{}
	c := &cobra.Command{
		Use:   "enroll NODE... | --all | --selector LABELS",
		Short: "Make the credential of a node: a kubeconfig for its agent",
		Long: `Makes a token that is bound to the Node, so that it works for the agent of this node and dies with the Node
object, and puts it into a kubeconfig. That of one node is printed; those of several become DIR/NODE.kubeconfig, mode
0600. "kured-agent enroll" on the node proves and installs it, and the agent renews the token from then on.

The API server and its CA are those of your own kubeconfig. The nodes may reach it elsewhere: --server says where, and
with "auto" each node takes them from its kubelet.

You need the rights to get the nodes (to list them, for --all and --selector), and to create serviceaccounts/token of
"agent" in the namespace. With --client-certificate: to create, get and delete certificatesigningrequests, and to approve
them: update certificatesigningrequests/approval, and approve the signer kubernetes.io/kube-apiserver-client. Where you
may not approve, the command waits until somebody does.`,
		Example: `  kubectl kured enroll worker-1 | ssh worker-1 sudo kured-agent enroll --kubeconfig -
  kubectl kured enroll --all --output ./kubeconfigs --server auto`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			for _, arg := range args {
				e.nodes = append(e.nodes, nodeName(arg))
			}
			if err := e.check(); err != nil {
				return usage(seeHelp(c, err))
			}
			return o.enroll(c, e)
		},
	}
	flags := c.Flags()
	flags.BoolVar(&e.all, "all", false, "every node")
	flags.StringVarP(&e.selector, "selector", "l", "", "the nodes with these labels")
	flags.StringVar(&e.output, "output", "", "write DIR/NODE.kubeconfig; the directory is made if it is missing")
	flags.StringVar(&e.server, "server", "", `URL of the API server for the nodes; "auto": as their kubelets`)
	flags.StringVar(&e.ca, "certificate-authority", "", "file with the CA of that server")
	flags.DurationVar(&e.lifetime, "lifetime", fleet.DefaultLifetime, "how long it is valid, from 10m to 720h (certificate: 8760h)")
	flags.BoolVar(&e.certificate, "client-certificate", false, "make a client certificate instead of a token")
	flags.DurationVar(&e.wait, "wait", time.Minute, "how long a certificate may take to be approved and signed")
	_ = c.MarkFlagDirname("output")
	return c
}

// check finds what is wrong with the command line before anything is made.
func (e *enrolment) check() error {
	several := e.all || e.selector != "" || len(e.nodes) > 1
	most := fleet.MaxTokenLifetime
	if e.certificate {
		most = fleet.MaxCertificateLifetime
	}
	var all []error
	switch {
	case len(e.nodes) == 0 && !e.all && e.selector == "":
		all = append(all, errors.New("no node is named: give NODE, --all or --selector"))
	case e.all && e.selector != "", (e.all || e.selector != "") && len(e.nodes) > 0:
		all = append(all, errors.New("only one of NODE, --all and --selector can say which nodes"))
	case several && e.output == "":
		all = append(all, errors.New("the kubeconfigs of several nodes need --output DIR"))
	}
	if e.lifetime < fleet.MinLifetime || e.lifetime > most {
		all = append(all, fmt.Errorf("--lifetime %s is not from %s to %s", e.lifetime, fleet.MinLifetime, most))
	}
	if e.wait <= 0 {
		all = append(all, fmt.Errorf("--wait %s is no time", e.wait))
	}
	if e.server != "" && e.server != serverAuto {
		all = append(all, checkURL(e.server))
	}
	if e.server == serverAuto && e.ca != "" {
		all = append(all, errors.New("--server auto takes the CA from the kubelet too: --certificate-authority makes no sense"))
	}
	all = append(all, fleet.CheckSelector(e.selector))
	for _, name := range e.nodes {
		all = append(all, fleet.CheckNode(name))
	}
	return errors.Join(all...)
}

func checkURL(server string) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--server %q is neither an https URL nor \"auto\"", server)
	}
	return nil
}

func (o *options) enroll(c *cobra.Command, e *enrolment) error {
	config, err := o.restConfig()
	if err != nil {
		return err
	}
	if e.endpoint, err = e.endpointFrom(config); err != nil {
		return err
	}
	if loopback(e.endpoint.Server) {
		e.tell(c, "note: for a node, %s is the node itself: unless that is meant, say --server URL, or --server auto", e.endpoint.Server)
	}
	if e.client, err = fleet.New(config, fleet.Options{Namespace: o.namespace}); err != nil {
		return err
	}
	if e.output != "" {
		if err := os.MkdirAll(e.output, 0o700); err != nil {
			return err
		}
	}
	if len(e.nodes) == 1 && e.output == "" {
		return e.print(c)
	}
	return e.writeAll(c)
}

// endpointFrom is the API server as the nodes are to see it.
func (e *enrolment) endpointFrom(config *rest.Config) (fleet.Endpoint, error) {
	if e.server == serverAuto {
		return fleet.Endpoint{}, nil
	}
	config = rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return fleet.Endpoint{}, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	endpoint := fleet.Endpoint{Server: config.Host, CA: config.CAData, TLSServerName: config.ServerName}
	if e.server != "" {
		endpoint.Server, endpoint.TLSServerName = e.server, ""
	}
	if e.ca != "" {
		ca, err := files.Read(e.ca, maxCA)
		if err != nil {
			return fleet.Endpoint{}, err
		}
		endpoint.CA = ca
	}
	if config.Insecure && e.ca == "" {
		return fleet.Endpoint{}, errors.New("your kubeconfig does not check the API server (insecure-skip-tls-verify), and an " +
			"agent must: give --certificate-authority FILE, or --server auto")
	}
	if err := checkURL(endpoint.Server); err != nil {
		return fleet.Endpoint{}, fmt.Errorf("the server of your kubeconfig is not for the nodes: %w", err)
	}
	return endpoint, nil
}

func loopback(server string) bool {
	u, err := url.Parse(server)
	if err != nil || server == "" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// print makes the kubeconfig of one node.
func (e *enrolment) print(c *cobra.Command) error {
	target, err := e.client.Target(c.Context(), e.nodes[0])
	if err != nil {
		return err
	}
	credential, content, err := e.make(c, target)
	if err != nil {
		return err
	}
	e.tell(c, "%s", e.validity(credential))
	_, err = c.OutOrStdout().Write(content)
	return err
}

// made is what became of one node.
type made struct {
	words string
	err   error
}

// writeAll goes on after the trouble of one node, and stops at a trouble that every node would have.
func (e *enrolment) writeAll(c *cobra.Command) error {
	targets, err := e.targets(c.Context())
	if err != nil {
		return err
	}
	if len(targets) == 0 {
		return errors.New("there is no such node: nothing was made (is --selector right?)")
	}
	ctx, stop := context.WithCancel(c.Context())
	defer stop()
	c.SetContext(ctx)
	good, wrong := 0, 0
	for m := range e.workOn(c, targets) {
		switch {
		case m.err == nil:
			good++
			if err := say(c, "%s", m.words); err != nil {
				return err
			}
		case ctx.Err() != nil && wrong > 0: // its end is our doing
		default:
			wrong++
			e.tell(c, "%s: %v", spoken, m.err)
			if fleet.Hopeless(m.err) {
				stop()
			}
		}
	}
	if good < len(targets) {
		return fmt.Errorf("%d of %s have a kubeconfig in %s", good, count(len(targets), "node"), e.output)
	}
	return nil
}

// targets are all nodes that are meant. A named one is looked at when its turn comes, so that others do not wait for it.
func (e *enrolment) targets(ctx context.Context) ([]fleet.Target, error) {
	if len(e.nodes) == 0 {
		return e.client.Targets(ctx, e.selector)
	}
	var all []fleet.Target
	for _, name := range e.nodes {
		all = append(all, fleet.Target{Name: name})
	}
	return all, nil
}

// workOn enrols some nodes at a time, until c's context ends.
func (e *enrolment) workOn(c *cobra.Command, targets []fleet.Target) <-chan made {
	queue, results := make(chan fleet.Target), make(chan made)
	var workers sync.WaitGroup
	for range min(enrolledAtOnce, len(targets)) {
		workers.Go(func() {
			for target := range queue {
				results <- e.write(c, target)
			}
		})
	}
	go func() {
		defer close(results)
		defer workers.Wait()
		defer close(queue)
		for _, target := range targets {
			select {
			case queue <- target:
			case <-c.Context().Done():
				return
			}
		}
	}()
	return results
}

func (e *enrolment) write(c *cobra.Command, target fleet.Target) made {
	if target.UID == "" {
		var err error
		if target, err = e.client.Target(c.Context(), target.Name); err != nil {
			return made{err: err}
		}
	}
	credential, content, err := e.make(c, target)
	if err != nil {
		return made{err: err}
	}
	path := filepath.Join(e.output, target.Name+".kubeconfig")
	err = files.ReplaceDurably(path, 0o600, content)
	return made{words: fmt.Sprintf("%s: %s", path, e.validity(credential)), err: err}
}

func (e *enrolment) make(c *cobra.Command, target fleet.Target) (credential fleet.Credential, content []byte, err error) {
	if e.certificate {
		credential, err = e.client.Certificate(c.Context(), target, fleet.CertificateOptions{
			Lifetime: e.lifetime, Wait: e.wait,
			Waits: func(request string) {
				e.tell(c, "you may not approve it; waiting %s until somebody runs: kubectl certificate approve %s", e.wait, request)
			},
		})
	} else {
		credential, err = e.client.Token(c.Context(), target, e.lifetime)
	}
	if err != nil {
		return credential, nil, err
	}
	content, err = credential.Kubeconfig(e.endpoint)
	return credential, content, err
}

// validity says until when, and when the API server granted less than it was asked for.
func (e *enrolment) validity(credential fleet.Credential) string {
	left := time.Until(credential.Expires)
	words := fmt.Sprintf("for node %s, valid until %s (%s)", credential.Node, credential.Expires.UTC().Format(time.RFC3339),
		duration.HumanDuration(left.Round(time.Minute)))
	if left < e.lifetime-time.Hour/2 {
		words += ", since the cluster grants no more"
	}
	return words
}

// tell speaks beside the kubeconfigs. Some nodes are enrolled at a time, and each may have to say something.
func (e *enrolment) tell(c *cobra.Command, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = fmt.Fprintf(c.ErrOrStderr(), format+"\n", args...)
}
