// SPDX-License-Identifier: Apache-2.0
//go:build integration

package gate_test

import (
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/gate"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
	"github.com/kured-agent/kured-agent/test/cluster"
)

var shared *cluster.Cluster

func TestMain(m *testing.M) { cluster.Main(m, "gate-test", cluster.Options{}, &shared) }

func TestOnlyPodsThatRunOnThisNodeBlock(t *testing.T) {
	c := shared.For(t)
	c.NewKubelet("n1", cluster.KubeletOptions{})
	c.NewKubelet("n2", cluster.KubeletOptions{})
	k := kubetest.Connect(t, c.AgentKubeconfig("n1"))
	set := gate.New(gate.Options{Pods: []string{"job in (backup)"}, Node: "n1", Core: k.Core()})
	labels := map[string]string{"job": "backup"}
	c.Pod("n2", "elsewhere", cluster.PodOptions{Labels: labels})
	c.Pod("n1", "done", cluster.PodOptions{Labels: labels, Owner: "Job"})
	c.WaitRunning("elsewhere", "done")
	c.MustKubectl("patch", "pod", "done", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Succeeded"}}`)
	if got := set.Check(t.Context()); got != nil {
		t.Errorf("open gate says %q", got)
	}
	c.Pod("n1", "running", cluster.PodOptions{Labels: labels})
	if got := set.Check(t.Context()); len(got) != 1 || !strings.Contains(got[0], "default/running") {
		t.Errorf("got %q", got)
	}
	bad := gate.New(gate.Options{Pods: []string{"a in ("}, Node: "n1", Core: k.Core()})
	if got := bad.Check(t.Context()); len(got) != 1 {
		t.Errorf("malformed selector: %q", got)
	}
}
