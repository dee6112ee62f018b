// SPDX-License-Identifier: Apache-2.0
//go:build integration

package kube_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

var shared *cluster.Cluster

func TestMain(m *testing.M) { cluster.Main(m, "kube-test", cluster.Options{}, &shared) }

func TestTheConfinedTokenIsProven(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("proven", cluster.KubeletOptions{MachineID: machine})
	client := kubetest.Connect(t, c.AgentKubeconfig("proven"))
	if err := client.Prove(t.Context(), "proven", machine); err != nil {
		t.Fatal(err)
	}
	if client.Requests() != 3 {
		t.Errorf("%d requests", client.Requests())
	}
}

func TestAnotherMachineAndNoNodeAreFound(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("here", cluster.KubeletOptions{MachineID: machine})
	client := kubetest.Connect(t, c.AgentKubeconfig("here"))
	if got := problems(t, client.Prove(t.Context(), "here", strings.Repeat("9", 32))); len(got) != 1 ||
		!strings.Contains(got[0], "is another machine") {
		t.Errorf("got %q", got)
	}
	if got := problems(t, client.Prove(t.Context(), "nowhere", machine)); len(got) != 1 ||
		!strings.Contains(got[0], `Node "nowhere" does not exist`) {
		t.Errorf("got %q", got)
	}
}

func TestTheTokenOfADeletedNodeIsNotAccepted(t *testing.T) {
	c := shared.For(t)
	kubelet := c.NewKubelet("deleted", cluster.KubeletOptions{MachineID: machine})
	client := kubetest.Connect(t, c.AgentKubeconfig("deleted"))
	kubelet.Stop()
	c.MustKubectl("delete", "node", "deleted")
	c.Eventually("the credential is refused", 30*time.Second, func() bool {
		var proof *kube.ProofError
		err := client.Prove(t.Context(), "deleted", machine)
		return errors.As(err, &proof) && strings.Contains(err.Error(), "credential not accepted")
	})
}

func TestTheRealKubeletCredentialIsRefused(t *testing.T) {
	c := shared.For(t)
	_, err := kube.Connect(kube.Options{Kubeconfig: c.KubeletKubeconfig("k1")})
	if err == nil || !strings.Contains(err.Error(), "kubelet credentials cannot change taints") {
		t.Errorf("got %v", err)
	}
}

// TestEachMissingRightIsFoundOnTheRealServer gives one user all rights but one, in turn.
func TestEachMissingRightIsFoundOnTheRealServer(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("rights", cluster.KubeletOptions{MachineID: machine})
	type rule struct{ group, resource, name, verb string }
	wide := []rule{{"", "nodes", "", "get"}, {"", "nodes", "", "list"}, {"", "nodes", "", "patch"}, {"", "pods", "", "list"},
		{"", "pods/eviction", "", "create"}}
	lock := []rule{{"", "configmaps", "kured-agent-pools", "get"}}
	for _, verb := range []string{"get", "list", "create", "delete"} {
		lock = append(lock, rule{"coordination.k8s.io", "leases", "", verb})
	}
	rules := func(list []rule, without int) string {
		var out []string
		for i, r := range list {
			if i == without {
				continue
			}
			names := ""
			if r.name != "" {
				names = fmt.Sprintf(", resourceNames: [%q]", r.name)
			}
			out = append(out,
				fmt.Sprintf("{apiGroups: [%q], resources: [%q], verbs: [%q]%s}", r.group, r.resource, r.verb, names))
		}
		return "[" + strings.Join(out, ", ") + "]"
	}
	for i := range len(wide) + len(lock) {
		user := fmt.Sprintf("partial-%d", i)
		missing, withoutWide, withoutLock := rule{}, -1, -1
		if i < len(wide) {
			missing, withoutWide = wide[i], i
		} else {
			missing, withoutLock = lock[i-len(wide)], i-len(wide)
		}
		t.Run(missing.verb+" "+missing.resource, func(t *testing.T) {
			c := shared.For(t)
			c.Apply(fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules: %[2]s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s, namespace: kured-agent}
rules: %[3]s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: kured-agent}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]
`, user, rules(wide, withoutWide), rules(lock, withoutLock)))
			client := kubetest.Connect(t, c.Kubeconfig(user))
			var last error
			c.Eventually("only that right is missing", 10*time.Second, func() bool { // RBAC is seen a moment later
				last = client.Prove(t.Context(), "rights", machine)
				var proof *kube.ProofError
				return errors.As(last, &proof) && len(proof.Problems) == 1
			})
			what := missing.verb + " " + missing.resource
			if missing.name != "" {
				what += fmt.Sprintf(" %q", missing.name)
			}
			if !strings.Contains(last.Error(), "the agent may not "+what+" ") {
				t.Errorf("got %v", last)
			}
		})
	}
}

// TestTheManifestsGrantNothingThatIsNotProven keeps packaging/kubernetes and Prove together.
func TestTheManifestsGrantNothingThatIsNotProven(t *testing.T) {
	c := shared.For(t)
	got := c.MustKubectl("get", "clusterrole/kured-agent", "-o",
		"jsonpath={range .rules[*]}{.resources[*]} {.verbs[*]};{end}") +
		c.MustKubectl("-n", "kured-agent", "get", "role/kured-agent", "-o",
			"jsonpath={range .rules[*]}{.resources[*]} {.verbs[*]};{end}")
	const want = "nodes get list patch;pods list;pods/eviction create;leases get list create delete;configmaps get;" +
		"serviceaccounts/token create;"
	if got != want {
		t.Errorf("the roles grant %q, Prove asks for %q", got, want)
	}
}

func TestWithoutTheAPIServerNothingIsProven(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("away", cluster.KubeletOptions{MachineID: machine})
	client := kubetest.Connect(t, c.AgentKubeconfig("away"))
	c.StopAPIServer()
	err := client.Prove(t.Context(), "away", machine)
	c.StartAPIServer()
	var proof *kube.ProofError
	if err == nil || errors.As(err, &proof) {
		t.Errorf("got %v", err)
	}
	c.Eventually("proven again", 10*time.Second, func() bool { return client.Prove(t.Context(), "away", machine) == nil })
}
