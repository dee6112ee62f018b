// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// clusterServer answers what a credential is asked to prove about its bounds.
type clusterServer struct {
	user   string   // empty: reviews of oneself are not allowed
	may    []string // "verb resource" beyond an agent's rights
	nodes  []string
	patch  []string // nodes that may be patched
	writes []string // what would have changed something
}

func (s *clusterServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Spec struct{ ResourceAttributes map[string]string }
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	if r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") != "All" {
		s.writes = append(s.writes, r.URL.Path)
	}
	name, ofNode := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/")
	switch {
	case strings.HasSuffix(r.URL.Path, "selfsubjectreviews") && s.user == "":
		kubetest.Status(w, 403, "Forbidden", "no", nil)
	case strings.HasSuffix(r.URL.Path, "selfsubjectreviews"):
		kubetest.JSON(w, 201, map[string]any{"status": map[string]any{"userInfo": map[string]any{"username": s.user}}})
	case strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews"):
		a := body.Spec.ResourceAttributes
		what := a["verb"] + " " + a["resource"]
		if a["subresource"] != "" {
			what += "/" + a["subresource"]
		}
		kubetest.JSON(w, 201, map[string]any{"status": map[string]any{"allowed": slices.Contains(s.may, what)}})
	case r.URL.Path == "/api/v1/nodes":
		items := []any{}
		for _, name := range s.nodes {
			items = append(items, map[string]any{"metadata": map[string]any{"name": name}})
		}
		kubetest.JSON(w, 200, map[string]any{"items": items})
	case ofNode && slices.Contains(s.patch, name):
		kubetest.JSON(w, 200, map[string]any{"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": name}})
	case ofNode:
		kubetest.Status(w, 403, "Forbidden", fmt.Sprintf("nodes %q is forbidden: kured-agent may not", name), nil)
	default:
		http.NotFound(w, r)
	}
}

func TestACredentialMayNotDoMoreThanAnAgentNeeds(t *testing.T) {
	for _, c := range []struct {
		name   string
		server clusterServer
		want   []string
	}{
		{"confined", clusterServer{nodes: []string{"n1", "n2"}, patch: []string{"n1"}}, nil},
		{"the only node", clusterServer{nodes: []string{"n1"}, patch: []string{"n1"}}, nil},
		{"an admin's", clusterServer{may: []string{"* *"}}, []string{"may do everything", "kubectl kured enroll"}},
		{"another right", clusterServer{may: []string{"list secrets", "patch daemonsets", "patch nodes/status"}, nodes: []string{"n1"}},
			[]string{"may list secrets in the whole cluster", "may patch daemonsets", "may patch nodes/status", "kubectl kured enroll"}},
		{"without policies", clusterServer{nodes: []string{"n1", "n2"}, patch: []string{"n1", "n2"}},
			[]string{`another Node, "n2"`, "kubectl apply -k"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, _ := kubetest.Server(t, &c.server)
			err := client.ProveConfined(t.Context(), "n1")
			var proof *kube.ProofError
			if errors.As(err, &proof) != (c.want != nil) || err != nil && c.want == nil {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			if len(c.server.writes) > 0 {
				t.Errorf("not a dry run: %q", c.server.writes)
			}
		})
	}
}

func TestACredentialThatThePoliciesRefuseIsNoUse(t *testing.T) {
	server := &clusterServer{patch: []string{"n1"}}
	client, _ := kubetest.Server(t, server)
	if err := client.ProveAdmitted(t.Context(), "n1"); err != nil || len(server.writes) > 0 {
		t.Errorf("got %v, wrote %q", err, server.writes)
	}
	if got := problems(t, client.ProveAdmitted(t.Context(), "n2")); !strings.Contains(got[0], `kured-agent may not`) {
		t.Errorf("got %q", got)
	}
}

func TestTheServerSaysWhoseCredentialItIs(t *testing.T) {
	for user, want := range map[string]string{"kured-agent:n1": "kured-agent:n1", "": ""} {
		client, _ := kubetest.Server(t, &clusterServer{user: user})
		if got, err := client.Username(t.Context()); err != nil || got != want {
			t.Errorf("got %q, %v", got, err)
		}
	}
	client, _ := kubetest.Server(t, &clusterServer{user: "system:node:n1"})
	_, err := client.Username(t.Context())
	if refused, ok := errors.AsType[*kube.RefusedError](err); !ok || !strings.Contains(refused.Problems[0], "cannot change taints") {
		t.Errorf("got %v", err)
	}
}
