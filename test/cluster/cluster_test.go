// SPDX-License-Identifier: Apache-2.0
//go:build integration

package cluster_test

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/test/cluster"
)

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	host := cluster.NewHost("cluster-test", os.Stderr)
	code := 1
	err := host.Run(func() {
		shared = cluster.Start(host, cluster.Options{ControllerManager: true, Scheduler: true, Audit: true})
		code = m.Run()
	})
	if err != nil {
		host.Logf("%v", err)
	}
	os.Exit(code)
}

func TestAFakeKubeletMakesANodeReadyAndReportsItsBoots(t *testing.T) {
	c := shared.For(t)
	k := c.NewKubelet("boots", cluster.KubeletOptions{Labels: map[string]string{"zone": "a"}})
	node := c.Node("boots")
	if node.Status.NodeInfo.BootID != k.BootID() || node.Labels["zone"] != "a" {
		t.Errorf("node has boot id %q and labels %v", node.Status.NodeInfo.BootID, node.Labels)
	}
	next := cluster.NewBootID()
	k.Down()
	k.Up(next)
	if got := c.Node("boots").Status.NodeInfo.BootID; got != next {
		t.Errorf("boot id after the next boot is %q, want %q", got, next)
	}
	k.SetReady(false)
	c.Eventually("the node is tainted not-ready", 20*time.Second, func() bool {
		return strings.Contains(c.MustKubectl("get", "node", "boots", "-o", "jsonpath={.spec.taints[*].key}"), "not-ready")
	})
}

func TestAPodRunsIsProtectedByItsBudgetAndEndsWhenEvicted(t *testing.T) {
	c := shared.For(t)
	k := c.NewKubelet("evict", cluster.KubeletOptions{})
	labels := map[string]string{"app": "web"}
	c.Pod("evict", "web-1", cluster.PodOptions{Labels: labels, Owner: "ReplicaSet"})
	c.WaitRunning("web-1")
	c.PDB("web", labels, 1)
	evict := func() error {
		return c.Do(t.Context(), http.MethodPost, "/api/v1/namespaces/default/pods/web-1/eviction", map[string]any{
			"apiVersion": "policy/v1", "kind": "Eviction", "metadata": map[string]any{"name": "web-1"},
		}, nil)
	}
	var status *cluster.StatusError
	if err := evict(); !errors.As(err, &status) || status.Code != http.StatusTooManyRequests {
		t.Fatalf("evicting the only pod of a budget: %v, want 429", err)
	}
	c.Pod("evict", "web-2", cluster.PodOptions{Labels: labels, Owner: "ReplicaSet"})
	c.WaitRunning("web-2")
	c.Eventually("the budget allows one", 10*time.Second, func() bool { return evict() == nil })
	c.Eventually("the pod is gone", 10*time.Second, func() bool { return len(c.Pods("evict")) == 1 })
	k.SetPodDelete(-1)
	c.MustKubectl("delete", "pod", "web-2", "--wait=false")
	if pods := c.Pods("evict"); len(pods) != 1 || pods[0].DeletionTimestamp == nil {
		t.Errorf("a kubelet that never ends pods left %d", len(pods))
	}
}

func TestTheSchedulerPlacesAPodOnTheOnlyNodeThatFits(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("place", cluster.KubeletOptions{Labels: map[string]string{"place": "here"}})
	c.Pod("", "placed", cluster.PodOptions{Mutate: func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"place": "here"}
	}})
	c.WaitRunning("placed")
	if pods := c.Pods("place"); len(pods) != 1 {
		t.Errorf("node has %d pods", len(pods))
	}
}

func TestTheAgentsTokenMayTaintItsOwnNodeOnlyAndItsRequestsAreCounted(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("mine", cluster.KubeletOptions{})
	c.NewKubelet("yours", cluster.KubeletOptions{})
	kubeconfig := c.AgentKubeconfig("mine")
	if info, err := os.Stat(kubeconfig); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kubeconfig: %v %v", info, err)
	}
	taint := func(node string) (string, error) {
		return c.Kubectl("--kubeconfig="+kubeconfig, "patch", "node", node, "--type=merge", "--patch",
			`{"spec":{"taints":[{"key":"kured-agent/reboot-required","effect":"PreferNoSchedule"}]}}`)
	}
	if _, err := taint("mine"); err != nil {
		t.Errorf("tainting the own node: %v", err)
	}
	if _, err := taint("yours"); err == nil || !strings.Contains(err.Error(), "may not modify node") {
		t.Errorf("tainting another node: %v", err)
	}
	writes := c.WaitRequests(cluster.NodeWrites("mine"), 1, 5*time.Second)
	if len(writes) == 0 || writes[len(writes)-1].User != cluster.AgentUser {
		t.Errorf("node writes: %+v", writes)
	}
	if got := cluster.Count(c.Requests(cluster.ByUser(cluster.AgentUser)))["patch nodes"]; got < 2 {
		t.Errorf("the agents sent %d patches, want at least 2", got)
	}
}

func TestAKubeletMayNotChangeTaints(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("confined", cluster.KubeletOptions{})
	_, err := c.Kubectl("--kubeconfig="+c.KubeletKubeconfig("confined"), "taint", "node", "confined", "a=b:NoSchedule")
	if err == nil || !strings.Contains(err.Error(), "not allowed to modify taints") {
		t.Errorf("error is %v", err)
	}
}

func TestTheAPIServerGoesAwayAndComesBack(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("away", cluster.KubeletOptions{})
	for how, away := range map[string]func(){"stopped": c.StopAPIServer, "killed": c.KillAPIServer} {
		away()
		if c.NodeOrNil("away") != nil {
			t.Errorf("%s: it still answers", how)
		}
		c.StartAPIServer()
		if c.NodeOrNil("away") == nil {
			t.Errorf("%s: the node is lost", how)
		}
	}
	c.PauseAPIServer()
	client := &http.Client{Timeout: 300 * time.Millisecond}
	if _, err := client.Get(c.URL() + "/readyz"); err == nil || !os.IsTimeout(err) {
		t.Errorf("paused: %v, want a timeout", err)
	}
	c.ResumeAPIServer()
	c.Eventually("it answers again", 10*time.Second, func() bool { return c.NodeOrNil("away") != nil })
}

func TestClientGoAcceptsTheAdminConfig(t *testing.T) {
	if _, err := rest.HTTPClientFor(shared.AdminConfig()); err != nil {
		t.Error(err)
	}
}
