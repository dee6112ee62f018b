// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// Options says which parts run and how. The zero value is etcd and the API server with the agent's manifests applied.
type Options struct {
	// ControllerManager runs the garbage collector, the disruption controller, what marks and empties lost nodes, and what
	// signs approved certificates.
	ControllerManager bool
	// Workloads adds the controllers of Deployments, ReplicaSets, DaemonSets, StatefulSets and Jobs. They delete pods
	// that Cluster.Pod made up for an owner, so use one or the other.
	Workloads bool
	Scheduler bool
	// SchedulerConfig is appended to a KubeSchedulerConfiguration, for instance "profiles:" with its lines.
	SchedulerConfig string
	// Audit writes the log that Requests reads.
	Audit bool
	// NoManifests leaves packaging/kubernetes out: no namespace, no roles, no admission policies.
	NoManifests bool
	// Manifests is the folder given to kubectl apply -k instead of packaging/kubernetes.
	Manifests string
	// Names are further DNS names or addresses of the serving certificate.
	Names []string
	// APIServer is another program than the built one to run as kube-apiserver, with the same arguments.
	APIServer string
	// NoNodeRestriction lets kubelets change every Node and evict every pod.
	NoNodeRestriction bool
	// APIServerArgs are appended to the command line of kube-apiserver.
	APIServerArgs []string
}

// Cluster is a running control plane.
type Cluster struct {
	t TB
	*control
}

// control is what the views of one cluster share.
type control struct {
	options Options
	binary  string
	dir     string
	address string // of the API server, host:port
	etcd    string // URL
	ca      *authority
	admin   pair
	http    *http.Client

	mu    sync.Mutex
	parts map[string]*process
	audit auditLog
}

const (
	systemMasters = "system:masters"
	readyBound    = 90 * time.Second
)

var controllers = []string{
	"garbage-collector-controller", "disruption-controller", "node-lifecycle-controller", "taint-eviction-controller",
	"pod-garbage-collector-controller", "namespace-controller", "certificatesigningrequest-signing-controller",
}

var workloadControllers = []string{
	"deployment-controller", "replicaset-controller", "daemonset-controller", "statefulset-controller", "job-controller",
}

// Start runs a control plane and returns when it answers, has the manifests and enforces the admission policies.
// It ends with t.
func Start(t TB, o Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t, control: &control{options: o, dir: t.TempDir(), parts: map[string]*process{}}}
	t.Cleanup(c.stop)
	if err := c.start(); err != nil {
		t.Fatalf("starting the test control plane: %v", err)
	}
	return c
}

// For returns the same cluster with t to fail and to clean up what is started through it: a package that shares one
// cluster among its tests gives each test its own view.
func (c *Cluster) For(t TB) *Cluster { return &Cluster{t: t, control: c.control} }

func (c *Cluster) start() (err error) {
	if c.binary, err = Binary(context.Background(), os.Stderr); err != nil {
		return err
	}
	if err := os.Mkdir(c.path("logs"), 0o700); err != nil {
		return err
	}
	if err := c.writePKI(); err != nil {
		return fmt.Errorf("making certificates: %w", err)
	}
	if err := c.startEtcd(); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	c.address = fmt.Sprintf("127.0.0.1:%d", port)
	if err := c.startAPIServer(); err != nil {
		return err
	}
	if !c.options.NoManifests {
		if err := c.applyManifests(); err != nil {
			return err
		}
	}
	return c.startClients()
}

// startClients starts the parts that talk to the API server, or starts them again.
func (c *Cluster) startClients() error {
	if c.hasControllers() {
		if err := c.startControllerManager(); err != nil {
			return err
		}
	}
	if c.options.Scheduler {
		return c.startScheduler()
	}
	return nil
}

func (c *Cluster) hasControllers() bool { return c.options.ControllerManager || c.options.Workloads }

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

func (c *Cluster) writePKI() (err error) {
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	names := append([]string{"127.0.0.1", "10.88.0.1", "localhost", "kubernetes"}, c.options.Names...)
	serving, err := c.ca.server(names...)
	if err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	accountsPEM, err := encodeKey(accounts)
	if err != nil {
		return err
	}
	if c.admin, err = c.ca.client("admin", systemMasters); err != nil {
		return err
	}
	caKey, err := encodeKey(c.ca.key)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": c.ca.pem, "ca.key": caKey, "apiserver.crt": serving.cert, "apiserver.key": serving.key, "accounts.key": accountsPEM,
		"audit.yaml": []byte(auditPolicy),
	} {
		if err := os.WriteFile(c.path(name), content, 0o600); err != nil {
			return err
		}
	}
	transport, err := c.transport(c.admin)
	c.http = &http.Client{Transport: transport}
	return err
}

func (c *Cluster) transport(p pair) (*http.Transport, error) {
	cert, err := tls.X509KeyPair(p.cert, p.key)
	if err != nil {
		return nil, err
	}
	pool := x509Pool(c.ca)
	return &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 64,
	}, nil
}

func (c *Cluster) startEtcd() error {
	client, err := freePort()
	if err != nil {
		return err
	}
	peer, err := freePort()
	if err != nil {
		return err
	}
	c.etcd = fmt.Sprintf("http://127.0.0.1:%d", client)
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", peer)
	// Nothing here outlives the test, so no write needs to reach the disk.
	_, err = c.launch("etcd", "--data-dir", c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+c.etcd, "--advertise-client-urls="+c.etcd,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=default="+peerURL)
	return err
}

func (c *Cluster) startAPIServer() error {
	_, port, _ := net.SplitHostPort(c.address)
	args := []string{
		"--etcd-servers=" + c.etcd,
		"--bind-address=127.0.0.1", "--secure-port=" + port, "--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + c.path("apiserver.crt"), "--tls-private-key-file=" + c.path("apiserver.key"),
		"--client-ca-file=" + c.path("ca.crt"), "--cert-dir=" + c.dir,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("accounts.key"),
		"--service-account-signing-key-file=" + c.path("accounts.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=Node,RBAC",
		// Pods need no token here, and without its controllers the plugin would refuse every pod.
		"--disable-admission-plugins=ServiceAccount",
		"--profiling=false",
	}
	if !c.options.NoNodeRestriction {
		args = append(args, "--enable-admission-plugins=NodeRestriction")
	}
	if c.options.Audit {
		args = append(args, "--audit-policy-file="+c.path("audit.yaml"), "--audit-log-path="+c.path("audit.log"))
	}
	p, err := c.launch("kube-apiserver", append(args, c.options.APIServerArgs...)...)
	if err != nil {
		return err
	}
	return c.waitReady(p)
}

func (c *Cluster) waitReady(p *process) error {
	deadline := time.Now().Add(readyBound)
	for {
		err := c.Do(context.Background(), http.MethodGet, "/readyz", nil, nil)
		switch {
		case err == nil:
			return nil
		case p.ended():
			return fmt.Errorf("kube-apiserver ended:\n%s", p.tail(15))
		case time.Now().After(deadline):
			return fmt.Errorf("kube-apiserver is not ready after %s (%w):\n%s", readyBound, err, p.tail(15))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *Cluster) startControllerManager() error {
	kubeconfig := c.Kubeconfig("system:kube-controller-manager", systemMasters)
	run := controllers
	if c.options.Workloads {
		run = append(append([]string{}, run...), workloadControllers...)
	}
	_, err := c.launch("kube-controller-manager", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=500", "--kube-api-burst=1000", "--controllers="+strings.Join(run, ","),
		"--cluster-signing-cert-file="+c.path("ca.crt"), "--cluster-signing-key-file="+c.path("ca.key"))
	return err
}

func (c *Cluster) startScheduler() error {
	config := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s, qps: 500, burst: 1000}
leaderElection: {leaderElect: false}
%s
`, c.Kubeconfig("system:kube-scheduler", systemMasters), c.options.SchedulerConfig)
	if err := os.WriteFile(c.path("scheduler.yaml"), []byte(config), 0o600); err != nil {
		return err
	}
	_, err := c.launch("kube-scheduler", "--config="+c.path("scheduler.yaml"), "--secure-port=0")
	return err
}

// launch starts one part, in place of an earlier process of it.
func (c *Cluster) launch(part string, args ...string) (*process, error) {
	if before := c.part(part); before != nil {
		before.stop(0)
	}
	program := c.binary
	if part == "kube-apiserver" {
		program = cmp.Or(c.options.APIServer, program)
	}
	p, err := start(part, c.dir, c.path("logs", part+".log"), append([]string{program, part}, args...)...)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.parts[part] = p
	c.mu.Unlock()
	return p, nil
}

func (c *Cluster) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.parts {
		p.stop(0)
	}
}

func (c *Cluster) part(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parts[name]
}

func (c *Cluster) apiServer() *process { return c.part("kube-apiserver") }

// StopAPIServer ends the API server in order; StartAPIServer brings it back on the same address.
func (c *Cluster) StopAPIServer() { c.apiServer().stop(5 * time.Second) }

// KillAPIServer ends the API server at once, with every connection.
func (c *Cluster) KillAPIServer() { c.apiServer().stop(0) }

// PauseAPIServer makes the API server accept connections and answer nothing.
func (c *Cluster) PauseAPIServer() { c.apiServer().pause() }

// ResumeAPIServer undoes PauseAPIServer.
func (c *Cluster) ResumeAPIServer() { c.apiServer().signal(syscall.SIGCONT) }

// StartAPIServer starts the API server again and returns when it is ready. Controller manager and scheduler start again
// too: after an outage they would wait up to half a minute before they look.
func (c *Cluster) StartAPIServer() {
	c.t.Helper()
	if err := c.startAPIServer(); err != nil {
		c.t.Fatalf("starting the API server again: %v", err)
	}
	if err := c.startClients(); err != nil {
		c.t.Fatalf("starting the controllers again: %v", err)
	}
}

// URL is the address of the API server on the host's loopback.
func (c *Cluster) URL() string { return "https://" + c.address }

// Dir is the folder of the cluster's files: ca.crt, kubeconfigs, logs, the audit log.
func (c *Cluster) Dir() string { return c.dir }

// CAFile is the certificate that signed the API server's.
func (c *Cluster) CAFile() string { return c.path("ca.crt") }

// Admin is a kubeconfig of the group system:masters.
func (c *Cluster) Admin() string {
	c.t.Helper()
	return c.writeKubeconfig("admin", c.admin.credential())
}

// AdminConfig is the same for client-go, without its rate limit.
func (c *Cluster) AdminConfig() *rest.Config {
	return &rest.Config{
		Host:            c.URL(),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.pem, CertData: c.admin.cert, KeyData: c.admin.key},
		QPS:             -1,
	}
}

// Kubeconfig writes a kubeconfig with a client certificate of the user and returns its path.
func (c *Cluster) Kubeconfig(user string, groups ...string) string {
	c.t.Helper()
	p, err := c.ca.client(user, groups...)
	if err != nil {
		c.t.Fatalf("issuing a certificate for %q: %v", user, err)
	}
	return c.writeKubeconfig(user, p.credential())
}

// KubeletKubeconfig writes a kubeconfig of the node's kubelet, the identity that may not change taints.
func (c *Cluster) KubeletKubeconfig(node string) string {
	c.t.Helper()
	return c.Kubeconfig("system:node:"+node, "system:nodes")
}

func (c *Cluster) writeKubeconfig(name, credential string) string {
	c.t.Helper()
	path := c.path(strings.NewReplacer(":", "-", "/", "-").Replace(name) + ".kubeconfig")
	// Replaced by rename: somebody may be reading the same file.
	temporary := fmt.Sprintf("%s.%d", path, mathrand.Uint64())
	err := errors.Join(os.WriteFile(temporary, kubeconfigText(c.URL(), c.ca.pem, credential), 0o600),
		os.Rename(temporary, path))
	if err != nil {
		c.t.Fatalf("writing a kubeconfig: %v", err)
	}
	return path
}

// Kubectl runs kubectl as admin and returns its standard output; the error carries its standard error.
func (c *Cluster) Kubectl(args ...string) (string, error) { return c.kubectl("", args...) }

// MustKubectl is Kubectl that fails the test on an error.
func (c *Cluster) MustKubectl(args ...string) string {
	c.t.Helper()
	out, err := c.Kubectl(args...)
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	return out
}

// Apply creates or changes the objects of a manifest as admin.
func (c *Cluster) Apply(manifest string) {
	c.t.Helper()
	if _, err := c.kubectl(manifest, "apply", "-f", "-"); err != nil {
		c.t.Fatalf("%v", err)
	}
}

func (c *Cluster) kubectl(stdin string, args ...string) (string, error) {
	cmd := exec.Command(c.binary, append([]string{"kubectl", "--kubeconfig", c.Admin()}, args...)...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), &stderr
	cmd.Env = append(os.Environ(), "HOME="+c.dir) // its cache goes where the rest goes
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), err
}

// Eventually polls until the condition holds and fails the test when it does not within the bound.
func (c *Cluster) Eventually(what string, bound time.Duration, condition func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(bound)
	for !condition() {
		if time.Now().After(deadline) {
			c.t.Fatalf("waited %s in vain: %s", bound, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// freePort finds a loopback port below the range from which the kernel picks the ports of clients.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + mathrand.IntN(12000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("finding a free port: a hundred tries found none")
}
