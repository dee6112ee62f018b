// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

const machine = "0123456789abcdef0123456789abcdef"

// proofServer answers what Prove asks.
type proofServer struct {
	node       string // body; empty: 404
	nodeCode   int    // other than 0: this error
	silent     bool   // the authorizer cannot list its rules
	missing    string // "verb resource" that is not allowed
	reviews    int    // status of the reviews, 0: they work
	single     int
	wrongScope bool // cluster-wide rights only show in the namespace of the slots
}

var granted = []map[string]any{
	{"verbs": []string{"get", "list", "patch"}, "apiGroups": []string{""}, "resources": []string{"nodes"}},
	{"verbs": []string{"list"}, "apiGroups": []string{""}, "resources": []string{"pods"}},
	{"verbs": []string{"create"}, "apiGroups": []string{""}, "resources": []string{"pods/eviction"}},
	{"verbs": []string{"get", "list", "create", "delete"}, "apiGroups": []string{"coordination.k8s.io"},
		"resources": []string{"leases"}},
	{"verbs": []string{"get"}, "apiGroups": []string{""}, "resources": []string{"configmaps"},
		"resourceNames": []string{"kured-agent-pools"}},
}

func (s *proofServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Spec struct {
			Namespace          string            `json:"namespace"`
			ResourceAttributes map[string]string `json:"resourceAttributes"`
		} `json:"spec"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	switch {
	case r.URL.Path == "/api/v1/nodes/n1" && s.nodeCode != 0:
		reason := map[int]string{401: "Unauthorized", 403: "Forbidden", 500: "InternalError"}[s.nodeCode]
		kubetest.Status(w, s.nodeCode, reason, "no", nil)
	case r.URL.Path == "/api/v1/nodes/n1" && s.node == "":
		kubetest.Status(w, 404, "NotFound", `nodes "n1" not found`, nil)
	case r.URL.Path == "/api/v1/nodes/n1":
		kubetest.JSON(w, 200, s.node)
	case s.reviews != 0:
		kubetest.Status(w, s.reviews, "Forbidden", "no", nil)
	case strings.HasSuffix(r.URL.Path, "selfsubjectrulesreviews"):
		kubetest.JSON(w, 201,
			map[string]any{"status": map[string]any{"incomplete": s.silent, "resourceRules": s.rules(body.Spec.Namespace)}})
	case strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews"):
		s.single++
		a := body.Spec.ResourceAttributes
		what := a["verb"] + " " + a["resource"]
		if a["subresource"] != "" {
			what += "/" + a["subresource"]
		}
		kubetest.JSON(w, 201,
			map[string]any{"status": map[string]any{"allowed": what != s.missing && (s.silent || s.wrongScope == false)}})
	default:
		http.NotFound(w, r)
	}
}

func (s *proofServer) rules(namespace string) []map[string]any {
	if s.silent || s.wrongScope && namespace == "default" {
		return nil
	}
	verb, resource, _ := strings.Cut(s.missing, " ")
	var rules []map[string]any
	for _, rule := range granted {
		verbs := slices.Clone(rule["verbs"].([]string))
		if rule["resources"].([]string)[0] == resource {
			verbs = slices.DeleteFunc(verbs, func(v string) bool { return v == verb })
		}
		rules = append(rules, map[string]any{"verbs": verbs, "apiGroups": rule["apiGroups"], "resources": rule["resources"],
			"resourceNames": rule["resourceNames"]})
	}
	return rules
}

func nodeBody(machineID, systemUUID string) string {
	return fmt.Sprintf(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"},`+
		`"status":{"nodeInfo":{"machineID":%q,"systemUUID":%q}}}`, machineID, systemUUID)
}

func problems(t *testing.T, err error) []string {
	t.Helper()
	var proof *kube.ProofError
	if !errors.As(err, &proof) {
		t.Fatalf("got %v, want a proof error", err)
	}
	return proof.Problems
}

func TestAProvenNodeCostsThreeRequests(t *testing.T) {
	server := &proofServer{node: nodeBody(machine, "")}
	client, _ := kubetest.Server(t, server)
	if err := client.Prove(t.Context(), "n1", machine+"\n"); err != nil {
		t.Fatal(err)
	}
	if client.Requests() != 3 {
		t.Errorf("%d requests", client.Requests())
	}
}

func TestEachMissingRightIsNamedWithTheWayOut(t *testing.T) {
	for _, right := range []string{"get nodes", "list nodes", "patch nodes", "list pods", "create pods/eviction", "get configmaps",
		"get leases", "list leases", "create leases", "delete leases"} {
		for _, silent := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s silent=%v", right, silent), func(t *testing.T) {
				server := &proofServer{node: nodeBody(machine, ""), missing: right, silent: silent}
				client, _ := kubetest.Server(t, server)
				err := client.Prove(t.Context(), "n1", machine)
				if got := problems(t, err); len(got) != 1 || !strings.Contains(got[0], "may not "+right) {
					t.Errorf("got %q", got)
				}
				for _, way := range []string{"kubectl apply -k packaging/kubernetes", "/usr/share/kured-agent/kubernetes"} {
					if strings.Count(err.Error(), way) != 1 {
						t.Errorf("the way out %q is not there once: %v", way, err)
					}
				}
			})
		}
	}
}

func TestAClusterWideRightMustNotComeFromTheSlotsNamespace(t *testing.T) {
	client, _ := kubetest.Server(t, &proofServer{node: nodeBody(machine, ""), wrongScope: true})
	err := client.Prove(t.Context(), "n1", machine)
	if got := problems(t, err); len(got) != 5 {
		t.Errorf("got %q", got)
	}
	if strings.Count(err.Error(), "kubectl apply") != 1 {
		t.Errorf("five missing rights have one way out: %v", err)
	}
}

func TestTheNodeMustBeThisMachine(t *testing.T) {
	for _, c := range []struct{ name, here, id, uuid, problem string }{
		{name: "same machine id", here: machine, id: machine},
		{name: "machine id from the firmware", here: machine, uuid: "01234567-89AB-CDEF-0123-456789ABCDEF", id: "x"},
		{name: "kubelet reports none", here: machine},
		{name: "another machine", here: machine, id: strings.Repeat("f", 32), problem: "is another machine"},
		{name: "no id here", here: "", id: machine, problem: "systemd-machine-id-setup"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, _ := kubetest.Server(t, &proofServer{node: nodeBody(c.id, c.uuid)})
			err := client.Prove(t.Context(), "n1", c.here)
			if c.problem == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if got := problems(t, err); len(got) != 1 || !strings.Contains(got[0], c.problem) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestAProblemWithTheNodeNamesTheWayOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		server proofServer
		want   string // of the problem; empty: no answer, so no verdict
	}{
		{"does not exist", proofServer{}, "set [node] name"},
		{"credential not accepted", proofServer{nodeCode: 401}, "credential not accepted"},
		{"may not be read", proofServer{nodeCode: 403, missing: "get nodes"}, "may not get nodes"},
		{"server error", proofServer{nodeCode: 500}, ""},
		{"answer is no JSON", proofServer{node: "<html>"}, ""},
		{"answer is about another", proofServer{node: `{"metadata":{"name":"n2"}}`}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, _ := kubetest.Server(t, &c.server)
			err := client.Prove(t.Context(), "n1", machine)
			if c.want == "" {
				var proof *kube.ProofError
				if err == nil || errors.As(err, &proof) {
					t.Fatalf("got %v, want an error that proves nothing", err)
				}
				return
			}
			if got := problems(t, err); len(got) != 1 || !strings.Contains(got[0], c.want) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestWithoutAccessReviewsTheRightsAreTakenForGranted(t *testing.T) {
	client, _ := kubetest.Server(t, &proofServer{node: nodeBody(machine, ""), reviews: 403})
	if err := client.Prove(t.Context(), "n1", machine); err != nil {
		t.Fatal(err)
	}
}

// FuzzProof: a server that answers nonsense proves nothing.
func FuzzProof(f *testing.F) {
	f.Add(200, []byte(nodeBody(machine, "")))
	f.Add(201, []byte(`{"status":{"resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}}`))
	f.Add(401, []byte(`{"kind":"Status","apiVersion":"v1","message":"Unauthorized","code":401}`))
	f.Add(200, []byte(`{"metadata":null,"status":{"resourceRules":[null],"nodeInfo":[]}}`))
	var code atomic.Int64
	var body atomic.Value
	client, _ := kubetest.Server(f, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		kubetest.JSON(w, int(code.Load()), body.Load())
	}))
	f.Fuzz(func(t *testing.T, status int, answer []byte) {
		code.Store(int64(200 + uint(status)%400))
		body.Store(answer)
		// One body cannot be the Node and the rights to it.
		if err := client.Prove(t.Context(), "n1", "another"); err == nil {
			t.Errorf("%d %q proves this machine", code.Load(), answer)
		}
	})
}
