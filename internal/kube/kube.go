// SPDX-License-Identifier: Apache-2.0

// Package kube connects to the API server with the node's own credential, refuses credentials that cannot work, and
// proves that the Node object it is about to act on is this machine's.
//
// It speaks through plain REST clients with a scheme of three API groups: the typed clientset links every group there
// is and costs ten megabytes of resident memory.
package kube

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
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
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kured-agent/kured-agent/internal/files"
)

const (
	// DefaultNamespace holds the slots and their ConfigMap.
	DefaultNamespace = "kured-agent"

	defaultTimeout = 15 * time.Second

	// A node's drain is the only burst there is; a fleet of thousands must not become one.
	defaultQPS = 10

	maxKubeconfig = 1 << 20
	maxText       = 300 // of what others say, in an error
)

// Options say how to connect.
type Options struct {
	Kubeconfig string        // path
	State      string        // directory of the renewed token; empty: none is looked for or kept
	RenewAfter time.Duration // age at which a token is renewed; zero: half of its lifetime
	UserAgent  string        // "kured-agent/<version>"
	Namespace  string        // of the slots; empty: DefaultNamespace
	Timeout    time.Duration // of one request; zero: 15 s
	QPS        float32       // requests a second, twice as many at once; zero: 10
	Logger     *slog.Logger  // nil: silent

	Kubelet       bool // the credential has to be this host's kubelet's, which is refused otherwise
	Copied        bool // the files that the kubeconfig names were copied beside it
	PodsElsewhere bool // another credential handles the pods: no right to them is needed
}

// Client holds one connection to the API server, opened by the first request and closed by CloseIdle.
type Client struct {
	core, coordination, policy rest.Interface

	namespace  string
	kubelet    bool         // it is a kubelet's credential
	noPods     bool         // its rights to pods are not needed
	config     *rest.Config // of the kubeconfig, without the token
	bearer     *bearer      // nil: the credential is not a token
	renewAfter time.Duration
	clock      clock // the API server's
	transport  http.RoundTripper
	requests   atomic.Int64
	logger     *slog.Logger
}

// Connect loads the kubeconfig and builds the client. It sends nothing. What it refuses comes as a *RefusedError.
func Connect(o Options) (*Client, error) {
	owners := files.Owners(cmp.Or(o.State, filepath.Dir(o.Kubeconfig)))
	from := origin{path: o.Kubeconfig, owners: owners, kubelet: o.Kubelet, copied: o.Copied}
	config, err := load(from)
	if err != nil {
		return nil, err
	}
	c := &Client{
		namespace: o.Namespace, kubelet: o.Kubelet, noPods: o.PodsElsewhere, renewAfter: o.RenewAfter, logger: o.Logger,
	}
	if c.bearer, err = newBearer(o, config, from, &c.clock); err != nil {
		return nil, err
	}
	config.BearerToken, config.BearerTokenFile = "", "" // line shows the newest one
	c.config = rest.CopyConfig(config)
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
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("using kubeconfig %q: %w", o.Kubeconfig, err)
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &line{next: next, host: server.Host, client: c} })

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
func (c *Client) Fingerprint(nodeName string) string {
	return fingerprint(identity(c.config, c.bearer), nodeName)
}

// origin is where a kubeconfig is, and what it has to be.
type origin struct {
	path    string
	owners  []int // who may own it
	kubelet bool
	copied  bool // with the files that it names, into its directory
}

// load reads the kubeconfig and collects every reason to refuse it.
func load(from origin) (*rest.Config, error) {
	path := from.path
	refused := &RefusedError{Path: path}
	data, info, err := from.open(refused)
	if err != nil {
		return nil, err
	}
	file, err := parse(path, data)
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	user := ""
	if context := file.Contexts[file.CurrentContext]; context != nil {
		user = context.AuthInfo
	}
	if from.copied {
		takeCopies(file, filepath.Dir(path))
	}
	refused.add(exposed(path, info, from.forbidden(file.AuthInfos[user]), from.owners))
	if info := file.AuthInfos[user]; info != nil {
		for _, secret := range []string{info.TokenFile, info.ClientKey} {
			refused.add(exposedSecret(secret, from.owners))
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
	for _, problem := range []string{plugin(config), from.misplaced(config, user)} {
		if problem != "" {
			refused.add(problem)
			refused.Way = from.way()
		}
	}
	refused.add(insecure(config))
	if len(refused.Problems) > 0 {
		return nil, refused
	}
	if from.kubelet {
		if err := embedCA(config); err != nil {
			return nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
		}
	}
	return config, nil
}

// open reads the file that it has looked at.
func (from origin) open(refused *RefusedError) ([]byte, fs.FileInfo, error) {
	path := from.path
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo must not hold up the start
	switch {
	case errors.Is(err, os.ErrNotExist):
		refused.add("it does not exist")
		refused.Way = from.way()
		return nil, nil, refused
	case from.kubelet && errors.Is(err, os.ErrPermission):
		refused.add("this user may not read it")
		refused.Way = from.way()
		return nil, nil, refused
	case err != nil:
		return nil, nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	case !info.Mode().IsRegular():
		refused.add("it is not a regular file")
		return nil, nil, refused
	case info.Size() > maxKubeconfig:
		refused.add("it is larger than 1 MiB")
		return nil, nil, refused
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKubeconfig))
	if err != nil {
		return nil, nil, fmt.Errorf("reading kubeconfig %q: %w", path, err)
	}
	return data, info, nil
}

// parse reads a kubeconfig whose relative paths are meant from its own directory.
func parse(path string, data []byte) (*clientcmdapi.Config, error) {
	file, err := clientcmd.Load(data)
	if err != nil {
		return nil, err
	}
	for _, cluster := range file.Clusters {
		cluster.LocationOfOrigin = path
	}
	for _, user := range file.AuthInfos {
		user.LocationOfOrigin = path
	}
	return file, clientcmd.ResolveLocalPaths(file)
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
