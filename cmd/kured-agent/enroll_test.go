// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

const thisMachine = "0123456789abcdef0123456789abcdef"

// apiServer takes every credential for the agent's, of a cluster with the nodes n1, which is this machine, and n2.
type apiServer struct {
	user     string   // empty: the service account
	excess   []string // "verb resource" that it may beyond an agent's rights
	missing  string   // "verb resource" of an agent that it may not
	patches  []string // nodes that it may patch
	requests int
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests++
	name, ofNode := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/")
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "selfsubjectreviews"):
		user := s.user
		if user == "" {
			user = "system:serviceaccount:kured-agent:agent"
		}
		kubetest.JSON(w, 201, map[string]any{"status": map[string]any{"userInfo": map[string]any{"username": user}}})
	case strings.HasSuffix(path, "selfsubjectrulesreviews"):
		kubetest.JSON(w, 201, map[string]any{"status": map[string]any{}})
	case strings.HasSuffix(path, "selfsubjectaccessreviews"):
		kubetest.JSON(w, 201, map[string]any{"status": map[string]any{"allowed": s.allows(r)}})
	case path == "/api/v1/nodes":
		kubetest.JSON(w, 200, `{"items":[{"metadata":{"name":"n1"}},{"metadata":{"name":"n2"}}]}`)
	case r.Method == http.MethodPatch && !slices.Contains(s.patches, name):
		kubetest.Status(w, 403, "Forbidden", fmt.Sprintf("nodes %q is forbidden: kured-agent may not", name), nil)
	case ofNode:
		id := map[string]string{"n1": thisMachine}[name]
		if id == "" {
			id = strings.Repeat("9", 32)
		}
		kubetest.JSON(w, 200, fmt.Sprintf(
			`{"kind":"Node","apiVersion":"v1","metadata":{"name":%q},"status":{"nodeInfo":{"machineID":%q}}}`, name, id))
	default:
		http.NotFound(w, r)
	}
}

// allows an agent what packaging/kubernetes grants it.
func (s *apiServer) allows(r *http.Request) bool {
	var body struct {
		Spec struct{ ResourceAttributes map[string]string }
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	a := body.Spec.ResourceAttributes
	what := a["verb"] + " " + a["resource"]
	if a["subresource"] != "" {
		what += "/" + a["subresource"]
	}
	if slices.Contains(s.excess, "* *") || slices.Contains(s.excess, what) {
		return true
	}
	own := []string{"get nodes", "list nodes", "patch nodes", "list pods", "create pods/eviction", "get configmaps", "get leases",
		"list leases", "create leases", "delete leases"}
	return what != s.missing && (slices.Contains(own, what) || what == "create serviceaccounts/token" && a["name"] == "agent")
}

// enrolled is a host that enrols.
type enrolled struct {
	t          *testing.T
	root       string
	server     *httptest.Server
	kubeconfig string // as the admin's command prints it
}

func newEnrolled(t *testing.T, s *apiServer, node string) *enrolled {
	t.Helper()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus")
	e := &enrolled{t: t, root: t.TempDir()}
	_, e.server = kubetest.Server(t, s)
	text, err := os.ReadFile(kubetest.Kubeconfig(t, e.server))
	if err != nil {
		t.Fatal(err)
	}
	e.kubeconfig = strings.Replace(string(text), "token: test", "token: "+tokenFor(node), 1)
	for name, content := range with(map[string]string{
		"etc/group":             fmt.Sprintf("kured-agent:x:%d:\n", os.Getgid()),
		"etc/kured/config.toml": "[cluster]\nkubeconfig = \"" + e.path("etc/kured/kubeconfig") + "\"\n",
	}) {
		e.write(name, content, 0o644)
	}
	return e
}

// tokenFor is bound to a Node; empty: to none.
func tokenFor(node string) string {
	claims := map[string]any{"sub": "system:serviceaccount:kured-agent:agent", "exp": time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC).Unix()}
	if node != "" {
		claims["kubernetes.io"] = map[string]any{"node": map[string]any{"name": node, "uid": "u"}}
	}
	payload, _ := json.Marshal(claims)
	return "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".c2ln"
}

func (e *enrolled) path(name string) string { return filepath.Join(e.root, name) }

func (e *enrolled) write(name, content string, mode os.FileMode) {
	e.t.Helper()
	if err := os.MkdirAll(filepath.Dir(e.path(name)), 0o755); err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(e.path(name), []byte(content), mode); err != nil {
		e.t.Fatal(err)
	}
	if err := os.Chmod(e.path(name), mode); err != nil {
		e.t.Fatal(err)
	}
}

func (e *enrolled) run(input string, args ...string) (code int, stdout, stderr string) {
	e.t.Helper()
	var out, wrong bytes.Buffer
	code = execute(e.t.Context(), append([]string{"--root", e.root, "--config", e.path("etc/kured/config.toml"), "enroll"}, args...),
		strings.NewReader(input), &out, &wrong)
	return code, out.String(), wrong.String()
}

// mustBeAlone fails when anything but the configuration, and what is named, is where the credential goes.
func (e *enrolled) mustBeAlone(others ...string) {
	e.t.Helper()
	entries, err := os.ReadDir(e.path("etc/kured"))
	if err != nil {
		e.t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != "config.toml" && !slices.Contains(others, entry.Name()) {
			e.t.Errorf("%s was left behind", entry.Name())
		}
	}
}

func TestACredentialIsProvenAndInstalled(t *testing.T) {
	e := newEnrolled(t, &apiServer{patches: []string{"n1"}}, "n1")
	code, stdout, stderr := e.run(e.kubeconfig, "--kubeconfig", "-")
	if code != 0 || stderr != "" {
		t.Fatalf("%d %s%s", code, stdout, stderr)
	}
	for _, want := range []string{
		"installed " + e.path("etc/kured/kubeconfig") + " for node n1\n",
		"credential: system:serviceaccount:kured-agent:agent, valid until 2030-01-02T03:04:05Z\n",
		"proven:     this machine, every right of an agent, and no other\n",
		"API server: " + e.server.URL + " (from the kubeconfig)\n",
		"systemctl enable --now kured-agent\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in:\n%s", want, stdout)
		}
	}
	info, err := os.Stat(e.path("etc/kured/kubeconfig"))
	if err != nil || info.Mode().Perm() != 0o640 || info.Sys().(*syscall.Stat_t).Gid != uint32(os.Getgid()) {
		t.Errorf("%v, %v", info, err)
	}
	e.mustBeAlone("kubeconfig")
}

func TestAnOpenFileIsInstalledAndToldOf(t *testing.T) {
	e := newEnrolled(t, &apiServer{patches: []string{"n1", "n2"}, excess: []string{"list secrets"}}, "n1")
	e.write("etc/kured/kubeconfig", "the one before", 0o600)
	e.write("tmp/n1.kubeconfig", e.kubeconfig, 0o644)
	code, stdout, stderr := e.run("", "--kubeconfig", e.path("tmp/n1.kubeconfig"), "--allow-excess")
	if code != 0 || !strings.Contains(stdout, "proven:     this machine, every right of an agent\n") {
		t.Errorf("%d %s", code, stdout)
	}
	for _, want := range []string{"everybody on this host could read", "may list secrets", `another Node, "n2"`} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not in %q", want, stderr)
		}
	}
	if text, _ := os.ReadFile(e.path("etc/kured/kubeconfig")); !strings.Contains(string(text), tokenFor("n1")) {
		t.Errorf("installed %s", text)
	}
}

func TestACredentialThatDoesNotProveItselfChangesNothing(t *testing.T) {
	fine := func() *apiServer { return &apiServer{patches: []string{"n1"}} }
	const kubelets = "users: [{name: system:node:n1, user: {token: test}}]"
	for _, c := range []struct {
		name   string
		server *apiServer
		node   string
		change func(e *enrolled)
		args   []string
		code   int
		says   []string
	}{
		{"nothing given", fine(), "n1", nil, nil, 2, []string{"--kubeconfig is missing; see kured-agent enroll --help"}},
		{"an empty pipe", fine(), "n1", func(e *enrolled) { e.kubeconfig = "" }, nil, 1, []string{"did the command before the pipe fail?"}},
		{"what the admin's command said", fine(), "n1", func(e *enrolled) { e.kubeconfig = "error: no such node" }, nil, 1,
			[]string{"reading the kubeconfig"}},
		{"too much", fine(), "n1", func(e *enrolled) { e.kubeconfig = strings.Repeat("#", 1<<20+1) }, nil, 1, []string{"1 MiB"}},
		{"no such file", fine(), "n1", nil, []string{"--kubeconfig", "/nonexistent"}, 1, []string{"/nonexistent"}},
		{"no group", fine(), "n1", func(e *enrolled) { e.write("etc/group", "root:x:0:\n", 0o644) }, nil, 1,
			[]string{`group "kured-agent"`, "is it installed?"}},
		{"a wrong configuration", fine(), "n1", func(e *enrolled) { e.write("etc/kured/config.toml", "[drian]\n", 0o644) }, nil, 1,
			[]string{"config.toml:1", "drain"}},
		{"the kubelet's by name", fine(), "", func(e *enrolled) {
			e.kubeconfig = strings.Replace(e.kubeconfig, "user: agent", "user: system:node:n1", 1)
			before, _, _ := strings.Cut(e.kubeconfig, "users: ")
			_, after, _ := strings.Cut(e.kubeconfig, "contexts: ")
			e.kubeconfig = before + kubelets + "\ncontexts: " + after
		}, nil, 1, []string{`kubeconfig "standard input"`, "kubelet credentials cannot change taints", "Enrolling a node"}},
		{"the kubelet's in disguise", &apiServer{user: "system:node:n1", patches: []string{"n1"}}, "", nil, nil, 1,
			[]string{"kubelet credentials cannot change taints"}},
		{"a program", fine(), "", func(e *enrolled) {
			e.kubeconfig = strings.Replace(e.kubeconfig, "token: "+tokenFor(""),
				"exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}", 1)
		}, nil, 1, []string{`"aws"`, "starts no programs"}},
		{"for another node by the kubelet's configuration", fine(), "n2", func(e *enrolled) {
			e.write("etc/default/kubelet", "KUBELET_EXTRA_ARGS=--hostname-override=n1\n", 0o644)
		}, nil, 1, []string{`for Node "n2", and this machine is Node "n1"`, "kubectl kured enroll n1 | ssh n1"}},
		{"for another node by the machine id", fine(), "n2", nil, nil, 1, []string{`Node "n2" is another machine`}},
		{"bound to nothing", &apiServer{}, "", nil, nil, 1, []string{`does not let it change Node "n1"`, "kubectl kured enroll n1"}},
		{"without a right", &apiServer{patches: []string{"n1"}, missing: "create leases"}, "n1", nil, nil, 1,
			[]string{"may not create leases", "kubectl apply -k"}},
		{"an admin's", &apiServer{patches: []string{"n1", "n2"}, excess: []string{"* *"}}, "", nil, nil, 1,
			[]string{"may do everything", "not installed", "--allow-excess", "kubectl kured enroll"}},
		{"without policies", &apiServer{patches: []string{"n1", "n2"}}, "n1", nil, nil, 1,
			[]string{`may change another Node, "n2"`, "kubectl apply -k", "--allow-excess"}},
		{"a server that does not answer", fine(), "n1", func(e *enrolled) { e.server.Close() }, nil, 1,
			[]string{"asking the API server https://127.0.0.1:", "from the kubeconfig", "--server", "--offline"}},
		{"another server that does not answer", fine(), "n1", nil, []string{"--kubeconfig", "-", "--server", "https://127.0.0.1:1"}, 1,
			[]string{"https://127.0.0.1:1 (from --server;"}},
		{"no kubelet to ask", fine(), "n1", nil, []string{"--kubeconfig", "-", "--server", "auto"}, 1, []string{"say --server URL"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnrolled(t, c.server, c.node)
			if c.change != nil {
				c.change(e)
			}
			args := c.args
			if args == nil && c.code != 2 {
				args = []string{"--kubeconfig", "-"}
			}
			code, stdout, stderr := e.run(e.kubeconfig, args...)
			if code != c.code || stdout != "" {
				t.Errorf("%d %s", code, stdout)
			}
			for _, want := range c.says {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q is not in:\n%s", want, stderr)
				}
			}
			if strings.Contains(stderr, tokenFor(c.node)) {
				t.Error("the token was told")
			}
			e.mustBeAlone()
		})
	}
}

func TestWithoutTheAPIServerACredentialIsInstalledOnDemand(t *testing.T) {
	s := &apiServer{}
	e := newEnrolled(t, s, "n1")
	e.write("etc/kubernetes/kubelet.conf", `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {
server: "https://10.0.0.1:6443", certificate-authority-data: b3VycyBvbmx5}}], users: [{name: "system:node:n1", user: {token: x}}],
contexts: [{name: c, context: {cluster: c, user: "system:node:n1"}}]}`, 0o600)
	code, stdout, stderr := e.run(e.kubeconfig, "--kubeconfig", "-", "--offline", "--server", "auto")
	if code != 1 || !strings.Contains(stderr, "certificate") { // "ours only" is no CA
		t.Errorf("%d %s%s", code, stdout, stderr)
	}
	e.mustBeAlone()
	code, stdout, stderr = e.run(e.kubeconfig, "--kubeconfig", "-", "--offline")
	if code != 0 || s.requests > 0 || !strings.Contains(stdout, "kured-agent check-config") {
		t.Errorf("%d, %d requests, %s%s", code, s.requests, stdout, stderr)
	}
}
