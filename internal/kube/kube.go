// SPDX-License-Identifier: Apache-2.0

// Package kube connects to the API server with the node's own credential, refuses credentials that cannot work, and
// proves that the Node object it is about to act on is this machine's.
//
// It speaks through plain REST clients with a scheme of three API groups: the typed clientset links every group there
// is and costs ten megabytes of resident memory.
package kube

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// DefaultNamespace holds the slots and their ConfigMap.
	DefaultNamespace = "kured-agent"

	defaultTimeout = 15 * time.Second

	// A node's drain is the only burst there is; a fleet of thousands must not become one.
	defaultQPS = 10

	maxKubeconfig = 1 << 20
	maxText       = 300 // of what others say, in an error
	// A list of 250 pods is about 2 MB; the bound keeps a broken or hostile server from filling the memory.
	maxResponse = 32 << 20
)

// Options say how to connect.
type Options struct {
	Kubeconfig string        // path
	UserAgent  string        // "kured-agent/<version>"
	Namespace  string        // of the slots; empty: DefaultNamespace
	Timeout    time.Duration // of one request; zero: 15 s
	QPS        float32       // requests a second, twice as many at once; zero: 10
	Logger     *slog.Logger  // nil: silent
}

// Client holds one connection to the API server, opened by the first request and closed by CloseIdle.
type Client struct {
	core, coordination, policy rest.Interface

	namespace string
	identity  string // of the credential, for Fingerprint
	renews    bool   // the credential is a ServiceAccount token, which the agent has to be able to renew
	transport http.RoundTripper
	requests  atomic.Int64
	logger    *slog.Logger
}

// Connect loads the kubeconfig and builds the client. It sends nothing. What it refuses comes as a *RefusedError.
func Connect(o Options) (*Client, error) {
	config, err := load(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	c := &Client{namespace: o.Namespace, identity: identity(config), renews: isServiceAccount(config), logger: o.Logger}
	if c.namespace == "" {
		c.namespace = DefaultNamespace
	}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	config.UserAgent = o.UserAgent
	if config.UserAgent == "" {
		config.UserAgent = "kured-agent"
	}
	config.Timeout = o.Timeout
	if config.Timeout == 0 {
		config.Timeout = defaultTimeout
	}
	// JSON, because foreign taints travel back to the server as the bytes that came.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	qps := o.QPS
	if qps == 0 {
		qps = defaultQPS
	}
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(qps, int(2*qps)) // one for all three clients
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counter{next: next, requests: &c.requests} })

	codecs, err := newCodecs()
	if err != nil {
		return nil, err
	}
	config.NegotiatedSerializer = codecs
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("using kubeconfig %q: %w", o.Kubeconfig, err)
	}
	c.transport = client.Transport
	for _, group := range []struct {
		path   string
		gv     schema.GroupVersion
		target *rest.Interface
	}{
		{"/api", corev1.SchemeGroupVersion, &c.core},
		{"/apis", coordinationv1.SchemeGroupVersion, &c.coordination},
		{"/apis", policyv1.SchemeGroupVersion, &c.policy},
	} {
		config := rest.CopyConfig(config)
		config.APIPath, config.GroupVersion = group.path, &group.gv
		if *group.target, err = rest.RESTClientForConfigAndClient(config, client); err != nil {
			return nil, fmt.Errorf("using kubeconfig %q: %w", o.Kubeconfig, err)
		}
	}
	return c, nil
}

func newCodecs() (runtime.NegotiatedSerializer, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, coordinationv1.AddToScheme, policyv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return serializer.NewCodecFactory(scheme).WithoutConversion(), nil
}

// Core is the client of /api/v1.
func (c *Client) Core() rest.Interface { return c.core }

// Coordination is the client of coordination.k8s.io/v1.
func (c *Client) Coordination() rest.Interface { return c.coordination }

// Policy is the client of policy/v1. Evictions go to Core: they are a subresource of pods.
func (c *Client) Policy() rest.Interface { return c.policy }

// CloseIdle closes the connection when no request is under way. An idle agent holds none: each open connection with a
// watch costs the API server about 96 KB.
func (c *Client) CloseIdle() { utilnet.CloseIdleConnectionsFor(c.transport) }

// Requests is the number of requests sent so far.
func (c *Client) Requests() int64 { return c.requests.Load() }

// Fingerprint identifies the credential and the Node name together. It stays the same when a token is renewed and
// changes when the credential belongs to somebody else, another server is meant, or the Node was created anew.
func (c *Client) Fingerprint(nodeName string) string { return fingerprint(c.identity, nodeName) }

// load reads the kubeconfig and collects every reason to refuse it.
func load(path string) (*rest.Config, error) {
	refused := &RefusedError{Path: path}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		refused.add("it does not exist")
		refused.Way = wayEnrol
		return nil, refused
	case err != nil:
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	case !info.Mode().IsRegular():
		refused.add("it is not a regular file")
		return nil, refused
	case info.Size() > maxKubeconfig:
		refused.add("it is larger than 1 MiB")
		return nil, refused
	}
	refused.add(exposed(path, info))

	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	user := ""
	if context := file.Contexts[file.CurrentContext]; context != nil {
		user = context.AuthInfo
	}
	if info := file.AuthInfos[user]; info != nil {
		for _, secret := range []string{info.TokenFile, info.ClientKey} {
			refused.add(exposedSecret(secret))
		}
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, &clientcmd.ConfigOverrides{}, nil).
		ClientConfig()
	switch {
	case err != nil && len(refused.Problems) > 0:
		return nil, refused
	case err != nil:
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	for _, problem := range []string{plugin(config), kubelet(config, user)} {
		if problem != "" {
			refused.add(problem)
			refused.Way = wayEnrol
		}
	}
	refused.add(insecure(config))
	if len(refused.Problems) > 0 {
		return nil, refused
	}
	return config, nil
}

// counter counts the requests and bounds the answers.
type counter struct {
	next     http.RoundTripper
	requests *atomic.Int64
}

func (c *counter) RoundTrip(request *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	response, err := c.next.RoundTrip(request)
	if err == nil {
		response.Body = &bounded{ReadCloser: response.Body, left: maxResponse}
	}
	return response, err
}

// WrappedRoundTripper lets CloseIdle find the transport below.
func (c *counter) WrappedRoundTripper() http.RoundTripper { return c.next }

var errTooLarge = fmt.Errorf("the answer of the API server is larger than %d MiB", maxResponse>>20)

type bounded struct {
	io.ReadCloser
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	if len(p) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= n
	return n, err
}

// RefusedError says why a kubeconfig is not used.
type RefusedError struct {
	Path     string
	Problems []string // each with the way out unless that is Way
	Way      string   // out of a missing file and a credential of the wrong kind; empty: neither
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("refusing kubeconfig %q: %s", e.Path, strings.Join(lines(e.Problems, e.Way), "; "))
}

// Lines has one problem a line, and at the end the way out that they share.
func (e *RefusedError) Lines() []string {
	var all []string
	for _, problem := range e.Problems {
		all = append(all, fmt.Sprintf("refusing kubeconfig %q: %s", e.Path, problem))
	}
	return lines(all, e.Way)
}

func (e *RefusedError) add(problem string) {
	if problem != "" {
		e.Problems = append(e.Problems, problem)
	}
}
