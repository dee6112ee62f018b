// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/fleet"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// server is an API server with the few objects that the command knows. Lists come in pages of two.
type server struct {
	mu      sync.Mutex
	pools   map[string]string
	version int
	rival   string         // the next patch of the ConfigMap finds this pool written by somebody else
	leases  map[string]any // by name
	nodes   map[string]any // by name
	token   string         // of the last request
	accept  string         // of the last list of nodes
	refuse  int            // every request
	writes  []string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if s.refuse != 0 {
		kubetest.Status(w, s.refuse, http.StatusText(s.refuse), "refused", nil)
		return
	}
	if r.Method != http.MethodGet {
		s.writes = append(s.writes, r.Method+" "+r.URL.Path)
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kured-agent/leases"
	switch path := r.URL.Path; {
	case path == "/api/v1/namespaces/kured-agent/configmaps/kured-agent-pools":
		s.configMap(w, r)
	case path == leases:
		s.list(w, r, s.leases)
	case path == "/api/v1/nodes":
		s.accept = r.Header.Get("Accept")
		s.list(w, r, s.nodes)
	case strings.HasPrefix(path, leases+"/"):
		delete(s.leases, strings.TrimPrefix(path, leases+"/"))
		kubetest.JSON(w, 200, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	case strings.HasPrefix(path, "/api/v1/nodes/"):
		s.node(w, r, strings.TrimPrefix(path, "/api/v1/nodes/"))
	default:
		kubetest.Status(w, 404, "NotFound", "no such path "+path, nil)
	}
}

func (s *server) configMap(w http.ResponseWriter, r *http.Request) {
	if s.pools == nil {
		kubetest.Status(w, 404, "NotFound", `configmaps "kured-agent-pools" not found`, nil)
		return
	}
	if r.Method == http.MethodPatch {
		if s.rival != "" {
			s.pools[s.rival], s.rival = "7", ""
			s.version++
		}
		var patch struct {
			Metadata struct{ ResourceVersion string }
			Data     map[string]*string
		}
		if json.NewDecoder(r.Body).Decode(&patch) != nil || patch.Metadata.ResourceVersion != strconv.Itoa(s.version) {
			kubetest.Status(w, 409, "Conflict", "the object has been modified", nil)
			return
		}
		if r.URL.Query().Get("dryRun") == "" {
			s.version++
			for key, value := range patch.Data {
				if value == nil {
					delete(s.pools, key)
				} else {
					s.pools[key] = *value
				}
			}
		}
	}
	kubetest.JSON(w, 200, map[string]any{"metadata": map[string]any{"uid": "u", "resourceVersion": strconv.Itoa(s.version)},
		"data": s.pools})
}

func (s *server) list(w http.ResponseWriter, r *http.Request, objects map[string]any) {
	const page = 2
	names := slices.Sorted(maps.Keys(objects))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	to, next := from+page, strconv.Itoa(from+page)
	if to >= len(names) {
		to, next = len(names), ""
	}
	items := []any{}
	for _, name := range names[from:to] {
		items = append(items, objects[name])
	}
	kubetest.JSON(w, 200, map[string]any{"metadata": map[string]any{"continue": next}, "items": items})
}

func (s *server) node(w http.ResponseWriter, r *http.Request, name string) {
	node, ok := s.nodes[name].(map[string]any)
	if !ok {
		kubetest.Status(w, 404, "NotFound", fmt.Sprintf("nodes %q not found", name), nil)
		return
	}
	annotations := node["metadata"].(map[string]any)["annotations"].(map[string]any)
	if r.Method == http.MethodPatch {
		var patch struct {
			Metadata struct{ Annotations map[string]any }
		}
		_ = json.NewDecoder(r.Body).Decode(&patch)
		for key, value := range patch.Metadata.Annotations {
			if annotations[key] = value; value == nil {
				delete(annotations, key)
			}
		}
	}
	kubetest.JSON(w, 200, node)
}

func node(name, boot, ready string, annotations, labels map[string]any) map[string]any {
	if annotations == nil {
		annotations = map[string]any{}
	}
	return map[string]any{
		"metadata": map[string]any{"name": name, "uid": "uid-" + name, "annotations": annotations, "labels": labels},
		"status": map[string]any{"nodeInfo": map[string]any{"bootID": boot},
			"conditions": []any{map[string]any{"type": "Ready", "status": ready}}},
	}
}

func lease(name, pool, holder, boot string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"name": name, "uid": "uid-" + name, "labels": map[string]any{"kured-agent/pool": pool},
			"annotations":     map[string]any{"kured-agent/boot-id": boot},
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": holder, "uid": "uid-" + holder}}},
		"spec": map[string]any{"holderIdentity": holder, "acquireTime": "2026-11-30T12:00:00.000000Z"},
	}
}

// busy is a fleet in which something goes on: n1 drains, n2 does not come back, n3 waits, n4 is held, n5 is clean.
func busy() *server {
	return &server{
		version: 1, pools: map[string]string{"default": "2", "control-plane": "1"},
		leases: map[string]any{
			"slot-default-0": lease("slot-default-0", "default", "n1", "b1"),
			"slot-default-1": lease("slot-default-1", "default", "n2", "b1"),
			"leader":         map[string]any{"metadata": map[string]any{"name": "leader"}},
		},
		nodes: map[string]any{
			"n1": node("n1", "b1", "True", map[string]any{"kured-agent/reasons": "linux-image"}, nil),
			"n2": node("n2", "b1", "Unknown", map[string]any{"kured-agent/cordoned": "b1"}, nil),
			"n3": node("n3", "b1", "True", map[string]any{"kured-agent/reasons": "linux-image"}, nil),
			"n4": node("n4", "b1", "True", map[string]any{"kured-agent/hold": "replacing a disk"}, nil),
			"n5": node("n5", "b1", "True", nil, map[string]any{"node-role.kubernetes.io/control-plane": ""}),
		},
	}
}

func start(t *testing.T, s *server) (kubeconfig string) {
	t.Helper()
	_, tls := kubetest.Server(t, s)
	return kubetest.Kubeconfig(t, tls)
}

func cli(t *testing.T, kubeconfig, input string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, wrong bytes.Buffer
	code = execute(t.Context(), append([]string{"--kubeconfig", kubeconfig}, args...), strings.NewReader(input), &out, &wrong)
	return code, out.String(), wrong.String()
}

func TestExitCodesAndWhatIsSaid(t *testing.T) {
	missing := &server{version: 1}
	alone := &server{version: 1, pools: map[string]string{"default": "1"},
		nodes: map[string]any{"n1": node("n1", "b1", "True", nil, nil)}}
	for _, c := range []struct {
		name   string
		server *server
		input  string
		args   []string
		code   int
		says   []string
		writes int
	}{
		{"help teaches", busy(), "", nil, 0, []string{`kubectl kured pause "incident 4711"`}, 0},
		{"version", busy(), "", []string{"version"}, 0, []string{"kubectl-kured dev"}, 0},
		{"no such command", busy(), "", []string{"stop"}, 2, []string{`"stop"`, "kubectl kured --help"}, 0},
		{"no such subcommand", busy(), "", []string{"pools", "get"}, 2, []string{`"get"`, "kubectl kured pools --help"}, 0},
		{"an unknown flag", busy(), "", []string{"status", "-o", "yaml"}, 2, []string{"--help"}, 0},
		{"an argument is missing", busy(), "", []string{"hold", "n1"}, 2, []string{"kubectl kured hold --help"}, 0},

		{"status", busy(), "", []string{"status"}, 0,
			[]string{"default         2       2       n1, n2", "n2     no", "down", "replacing a disk", "slot-default-1"}, 0},
		{"status as JSON", busy(), "", []string{"status", "--json"}, 0, []string{`"phase": "has turn"`, `"holders": [`}, 0},
		{"JSON of a quiet fleet has empty lists", alone, "", []string{"status", "--json"}, 0,
			[]string{`"nodes": []`, `"holders": []`}, 0},
		{"JSON without a ConfigMap has empty lists", missing, "", []string{"status", "--json"}, 0,
			[]string{`"pools": []`, `"nodes": []`}, 0},
		{"status of a quiet fleet", alone, "", []string{"status"}, 0, []string{"no node waits"}, 0},
		{"status without a ConfigMap", missing, "", []string{"status"}, 0, []string{"kubectl apply -k"}, 0},

		{"pools", busy(), "", []string{"pools"}, 0, []string{"control-plane   1       0       -"}, 0},
		{"pools without a ConfigMap", missing, "", []string{"pools"}, 1,
			[]string{"ConfigMap kured-agent/kured-agent-pools", "kubectl apply -k"}, 0},
		{"set", busy(), "", []string{"pools", "set", "default", "3"}, 0, []string{`pool "default" has 3 slots, before "2"`}, 1},
		{"set a new one", busy(), "", []string{"pools", "set", "gpu", "1"}, 0, []string{`pool "gpu" has 1 slot, and is new`}, 1},
		{"set what is there", busy(), "", []string{"pools", "set", "default", "2"}, 0, []string{"as before"}, 0},
		{"set on trial", busy(), "", []string{"pools", "set", "default", "3", "--dry-run"}, 0, []string{"nothing was changed"}, 1},
		{"set a percentage", busy(), "", []string{"pools", "set", "default", "10%"}, 2, []string{"--max-unavailable 10%"}, 0},
		{"set the pause", busy(), "", []string{"pools", "set", "paused", "1"}, 2, []string{"cannot be the name of a pool"}, 0},
		{"sync by role", busy(), "", []string{"pools", "sync", "--pool", "default", "--max-unavailable", "75%"}, 0,
			[]string{`pool "default" has 3 slots, 75% of 4 nodes, before "2"`}, 1},
		{"sync the control plane", busy(), "", []string{"pools", "sync", "--pool", "control-plane", "--max-unavailable", "10%"}, 0,
			[]string{`pool "control-plane" has 1 slot, 10% of 1 node, as before`}, 0},
		{"sync an unknown pool", busy(), "", []string{"pools", "sync", "--pool", "gpu", "--max-unavailable", "10%"}, 2,
			[]string{"give --selector"}, 0},
		{"sync without a percentage", busy(), "", []string{"pools", "sync", "--pool", "default", "--max-unavailable", "2"}, 2,
			[]string{"pools set"}, 0},
		{"sync without a pool", busy(), "", []string{"pools", "sync", "--max-unavailable", "10%"}, 2,
			[]string{"--pool is missing; see kubectl kured pools sync --help"}, 0},
		{"sync without how many", busy(), "", []string{"pools", "sync", "--pool", "default"}, 2,
			[]string{"--max-unavailable is missing"}, 0},
		{"sync without nodes", missing, "", []string{"pools", "sync", "--pool", "x", "--max-unavailable", "1%", "-l", "a=b"}, 1,
			[]string{"there is none, so nothing was changed", "--selector"}, 0},

		{"pause", busy(), "", []string{"pause", "incident 4711"}, 0, []string{"paused: incident 4711"}, 1},
		{"pause without a reason", busy(), "", []string{"pause", " "}, 2, []string{"say why"}, 0},
		{"resume", busy(), "", []string{"resume"}, 0, []string{"it was not paused"}, 0},
		{"hold", busy(), "", []string{"hold", "node/n3", "why"}, 0, []string{`node "n3" is held: why`}, 1},
		{"hold again", busy(), "", []string{"hold", "n4", "why"}, 0, []string{`It was held before: "replacing a disk"`}, 1},
		{"hold what is not there", busy(), "", []string{"hold", "n9", "why"}, 1, []string{`node "n9"`, "kubectl get nodes"}, 0},
		{"hold what cannot be a node", busy(), "", []string{"hold", "../n1", "why"}, 1, []string{"../n1"}, 0},
		{"unhold", busy(), "", []string{"unhold", "n4"}, 0, []string{`it was: "replacing a disk"`}, 1},
		{"unhold what is not held", busy(), "", []string{"unhold", "n3"}, 0, []string{`"n3" was not held`}, 0},

		{"release, confirmed", busy(), "y\n", []string{"release", "n2"}, 0,
			[]string{"slot-default-1 is held by node n2 since 2026-11-30T12:00:00Z", "taken in boot b1", "not Ready",
				"Free slot-default-1? [y/N]", "slot-default-1 is free"}, 1},
		{"release, declined", busy(), "n\n", []string{"release", "n2"}, 1, []string{"nothing was changed"}, 0},
		{"release, nobody there", busy(), "", []string{"release", "n2"}, 1, []string{"--yes"}, 0},
		{"release without asking", busy(), "", []string{"release", "n2", "--yes"}, 0, []string{"slot-default-1 is free"}, 1},
		{"release of one that may be draining", busy(), "y\n", []string{"release", "n1", "--yes"}, 1,
			[]string{"may be draining", "kubectl kured hold n1", "--force"}, 0},
		{"release by force", busy(), "", []string{"release", "n1", "--yes", "--force"}, 0, []string{"slot-default-0 is free"}, 1},
		{"release of one without slot", busy(), "", []string{"release", "n3"}, 0, []string{"holds no slot"}, 0},
		{"release of nobody", busy(), "", []string{"release", "n9"}, 1, []string{"does not exist", "kubectl kured status"}, 0},

		{"a right is missing", &server{refuse: 403}, "", []string{"status"}, 1, []string{"lacks this right", "--context"}, 0},
		{"not logged in", &server{refuse: 401}, "", []string{"pause", "x"}, 1, []string{"log in"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := cli(t, start(t, c.server), c.input, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.says {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("%q is not in:\n%s%s", want, stdout, stderr)
				}
			}
			if (stderr == "") != (c.code == 0) {
				t.Errorf("exit code %d and stderr %q", code, stderr)
			}
			if len(c.server.writes) != c.writes {
				t.Errorf("wrote %v", c.server.writes)
			}
		})
	}
}

func TestAWriterInBetweenLosesNothing(t *testing.T) {
	s := busy()
	s.rival = "gpu"
	code, stdout, stderr := cli(t, start(t, s), "", "pools", "set", "default", "3")
	if code != 0 || !strings.Contains(stdout, `before "2"`) || s.pools["gpu"] != "7" || s.pools["default"] != "3" {
		t.Errorf("%d %s%s %v", code, stdout, stderr, s.pools)
	}
}

func TestCountingAsksForMetadataOnly(t *testing.T) {
	s := busy()
	code, stdout, stderr := cli(t, start(t, s), "", "pools", "sync", "--pool", "default", "--max-unavailable", "50%", "--dry-run")
	if code != 0 || s.accept != "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1" {
		t.Errorf("%d %q %s%s", code, s.accept, stdout, stderr)
	}
}

func TestAPauseIsSeenAndTakenBack(t *testing.T) {
	s := busy()
	kubeconfig := start(t, s)
	for _, step := range []struct {
		args []string
		says string
	}{
		{[]string{"pause", "incident 4711"}, "paused: incident 4711"},
		{[]string{"status"}, "PAUSED: incident 4711\n"},
		{[]string{"pause", "incident 4712"}, `It was paused before: "incident 4711"`},
		{[]string{"pools"}, "PAUSED: incident 4712\n"},
		{[]string{"resume"}, `it was paused: "incident 4712"`},
		{[]string{"resume"}, "it was not paused"},
	} {
		if code, stdout, stderr := cli(t, kubeconfig, "", step.args...); code != 0 || !strings.Contains(stdout, step.says) {
			t.Errorf("%v: %d %s%s", step.args, code, stdout, stderr)
		}
	}
}

func TestTheCredentialPluginOfAnAdminIsRun(t *testing.T) {
	s := busy()
	path := start(t, s)
	plugin := filepath.Join(t.TempDir(), "login")
	credential := `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}`
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\necho '"+credential+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	exec := fmt.Sprintf("{exec: {apiVersion: client.authentication.k8s.io/v1, command: %q, interactiveMode: IfAvailable}}", plugin)
	text = bytes.ReplaceAll(text, []byte("{token: test}"), []byte(exec))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := cli(t, path, "", "status"); code != 0 || s.token != "from-plugin" {
		t.Errorf("%d %q %s%s", code, s.token, stdout, stderr)
	}
}

func TestAKubeconfigThatDoesNotWorkIsNamed(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none")) // and not the developer's own
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	working := start(t, busy())
	down := httptest.NewTLSServer(http.NotFoundHandler())
	unreachable := kubetest.Kubeconfig(t, down)
	down.Close()
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"none", nil, "KUBECONFIG"},
		{"none, and a context of it", []string{"--context", "foo"}, "there is no kubeconfig"},
		{"no such file", []string{"--kubeconfig", "/nonexistent/config"}, "/nonexistent/config"},
		{"no such context", []string{"--kubeconfig", working, "--context", "prod"}, "prod"},
		{"no answer", []string{"--kubeconfig", unreachable}, "is this the right cluster?"},
	} {
		var out, wrong bytes.Buffer
		code := execute(t.Context(), append(c.args, "status"), strings.NewReader(""), &out, &wrong)
		if code != exitFailed || !strings.Contains(wrong.String(), c.want) || out.Len() > 0 {
			t.Errorf("%s: %d %s%s", c.name, code, &wrong, &out)
		}
	}
}

func TestNoArgumentIsCompletedAsAFile(t *testing.T) {
	const noFiles = ":4\n" // what the shell's script reads
	for _, words := range [][]string{{"hold"}, {"hold", "n1"}, {"unhold"}, {"release"}, {"pause"}, {"pools", "set"}, {"enroll"}, {"enroll", "n1"}} {
		args := append(append([]string{"__complete"}, words...), "")
		var out, wrong bytes.Buffer
		if code := execute(t.Context(), args, strings.NewReader(""), &out, &wrong); code != 0 || out.String() != noFiles {
			t.Errorf("%v: %d %q", words, code, &out)
		}
	}
}

func TestTheTable(t *testing.T) {
	since := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	many := []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"}
	var out strings.Builder
	err := printStatus(&out, fleet.Status{
		Pools: fleet.Pools{Paused: true, PausedWhy: "change freeze", Pools: []fleet.Pool{
			{Name: "default", N: 7, Holders: many}, {Name: "gpu", Problem: `"10%" is not a number from 0 to 9999`}}},
		Nodes: []fleet.Node{
			{Name: "n1", Ready: true, Cordon: fleet.ByAgent, Phase: fleet.Cordoned, Slots: []string{"slot-default-0"}, Since: since,
				Reasons: strings.Repeat("linux-image ", 10)},
			{Name: "n9", Ready: false, Phase: fleet.Waiting, Hold: "replacing a disk", Reasons: "linux-image"},
		},
	}, since.Add(90*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	want := `PAUSED: change freeze
No slot is given out. "kubectl kured resume" goes on.

POOL      SLOTS                                         TAKEN   BY
default   7                                             7       n1, n2, n3, n4, n5, and 2 more
gpu       none ("10%" is not a number from 0 to 9999)   0       -

NODE   READY   CORDON   PHASE      SLOT             SINCE   HELD               REASONS
n1     yes     agent    cordoned   slot-default-0   90m     -                  linux-image linux-image linux-image linux-image linux-ima…
n9     no      -        waiting    -                -       replacing a disk   linux-image
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
