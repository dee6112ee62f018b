// SPDX-License-Identifier: Apache-2.0
//go:build integration

package drain_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kured-agent/kured-agent/internal/drain"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
	"github.com/kured-agent/kured-agent/internal/plan"
	"github.com/kured-agent/kured-agent/test/cluster"
)

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	cluster.Main(m, "drain-test", cluster.Options{ControllerManager: true}, &shared)
}

var started = time.Now()

// agent registers a node and returns a drain of it with the confined, node-bound token.
func agent(t *testing.T, node string, change ...func(*drain.Options)) (*cluster.Cluster, *drain.Client) {
	t.Helper()
	c := shared.For(t)
	c.NewKubelet(node, cluster.KubeletOptions{})
	k := kubetest.Connect(t, c.AgentKubeconfig(node))
	o := drain.Options{Node: node, GracePeriod: -1, UnmanagedPods: "block",
		Uptime: func() time.Duration { return time.Since(started) + time.Hour }}
	for _, f := range change {
		f(&o)
	}
	return c, drain.New(k.Core(), o)
}

func force(o *drain.Options) { o.UnmanagedPods = "evict" }

func look(t *testing.T, d *drain.Client) plan.Pods {
	t.Helper()
	pods, err := d.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// drained makes passes as they fall due until nothing is left.
func drained(t *testing.T, c *cluster.Cluster, d *drain.Client) {
	t.Helper()
	c.Eventually("the node is drained", 60*time.Second, func() bool {
		pods := look(t, d)
		if pods.Fatal {
			t.Fatal(pods.Why)
		}
		if pods.Left > 0 && pods.Next <= time.Since(started)+time.Hour {
			if err := d.Pass(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return pods.Left == 0
	})
}

func names(pods []corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		if p.DeletionTimestamp == nil {
			out = append(out, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(out)
	return out
}

// varied puts one pod of each kind on the node and returns the finished ones among them.
func varied(t *testing.T, c *cluster.Cluster, node string) (finished []string) {
	t.Helper()
	prefix := node + "-"
	second, high := int64(1), int32(900000)
	c.Pod(node, prefix+"rs", cluster.PodOptions{Owner: "ReplicaSet"})
	c.Pod(node, prefix+"sts", cluster.PodOptions{Owner: "StatefulSet"})
	c.Pod(node, prefix+"job", cluster.PodOptions{Owner: "Job"})
	c.Pod(node, prefix+"ds", cluster.PodOptions{Owner: "DaemonSet"})
	c.Pod(node, prefix+"bare", cluster.PodOptions{})
	c.Pod(node, prefix+"empty-dir", cluster.PodOptions{Owner: "ReplicaSet", EmptyDir: true, GracePeriod: &second})
	c.Pod(node, prefix+"important", cluster.PodOptions{Owner: "ReplicaSet", Priority: &high})
	c.Pod(node, prefix+"done", cluster.PodOptions{Owner: "Job", OwnerName: "done"})
	c.Pod(node, prefix+"failed", cluster.PodOptions{})
	c.Pod(node, prefix+"tolerates",
		cluster.PodOptions{Owner: "ReplicaSet", Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}})
	for _, name := range []string{"rs", "sts", "job", "ds", "bare", "empty-dir", "important", "done",
		"failed", "tolerates"} {
		c.WaitRunning(prefix + name)
	}
	c.MustKubectl("patch", "pod", prefix+"done", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Succeeded"}}`)
	c.MustKubectl("patch", "pod", prefix+"failed", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Failed"}}`)
	return []string{"default/" + prefix + "done", "default/" + prefix + "failed"}
}

// TestThePodsChosenAreThoseOfKubectlDrain runs both on the same node. They differ in the one thing that the agent does
// on purpose: pods that have ended need no eviction, and their logs and results stay.
func TestThePodsChosenAreThoseOfKubectlDrain(t *testing.T) {
	c, d := agent(t, "varied", force)
	finished := varied(t, c, "varied")
	mirror(t, c, "varied")
	before := names(c.Pods("varied"))

	out := c.MustKubectl("drain", "varied", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--dry-run=server")
	var theirs []string
	for _, match := range regexp.MustCompile(`(?m)^evicting pod (\S+)`).FindAllStringSubmatch(out, -1) {
		theirs = append(theirs, match[1])
	}
	slices.Sort(theirs)
	if len(theirs) < 8 {
		t.Fatalf("kubectl says %q", out)
	}
	drained(t, c, d)
	left := names(c.Pods("varied"))
	var ours []string
	for _, name := range before {
		if !slices.Contains(left, name) {
			ours = append(ours, name)
		}
	}
	if diff := cmp.Diff(theirs, slices.Sorted(slices.Values(append(slices.Clone(ours), finished...)))); diff != "" {
		t.Errorf("pods (-kubectl +ours and the finished ones):\n%s", diff)
	}
	for _, name := range finished {
		if !slices.Contains(left, name) {
			t.Errorf("finished pod %s was evicted", name)
		}
	}
	if int(d.Evictions()) != len(ours) {
		t.Errorf("%d evictions for %d pods", d.Evictions(), len(ours))
	}
}

// mirror makes the mirror of a static pod, which only the node itself may create.
func mirror(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	manifest := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"static-%s","namespace":"default",`+
		`"annotations":{"kubernetes.io/config.mirror":"abc"},"ownerReferences":[{"apiVersion":"v1","kind":"Node",`+
		`"name":%q,"uid":%q,"controller":true}]},"spec":{"nodeName":%q,"containers":[{"name":"a","image":"a"}]}}`,
		node, node, c.Node(node).UID, node)
	path := t.TempDir() + "/pod.json"
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	c.MustKubectl("--kubeconfig", c.KubeletKubeconfig(node), "create", "-f", path)
}

func TestABudgetThatRefusesIsWaitedForAndNamed(t *testing.T) {
	c, d := agent(t, "budget")
	labels := map[string]string{"budget": "web"}
	c.Pod("budget", "web-1", cluster.PodOptions{Owner: "ReplicaSet", Labels: labels})
	c.WaitRunning("web-1")
	c.PDB("web", labels, 1)
	c.Eventually("the budget is in force", 20*time.Second, func() bool {
		look(t, d)
		if err := d.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(look(t, d).Why, "disruption budget web needs 1 healthy pods and has 1 currently")
	})
	pods := look(t, d)
	if pods.Left != 1 || pods.Fatal ||
		!strings.Contains(pods.Why, "pod default/web-1: its PodDisruptionBudget allows no disruption") {
		t.Errorf("%+v", pods)
	}
	if wait := pods.Next - time.Since(started) - time.Hour; wait < 3*time.Second || wait > 6*time.Second {
		t.Errorf("asks again after %s", wait)
	}
	if d.Evictions() != 0 {
		t.Errorf("%d evictions against the budget", d.Evictions())
	}
	c.NewKubelet("budget-2", cluster.KubeletOptions{})
	c.Pod("budget-2", "web-2", cluster.PodOptions{Owner: "ReplicaSet", Labels: labels})
	c.WaitRunning("web-2")
	drained(t, c, d)
	if got := names(c.Pods("budget-2")); !slices.Equal(got, []string{"default/web-2"}) {
		t.Errorf("on the other node: %v", got)
	}
}

func TestAPodUnderTwoBudgetsIsFatalAndNamed(t *testing.T) {
	c, d := agent(t, "two-budgets")
	labels := map[string]string{"budget": "two"}
	c.Pod("two-budgets", "torn", cluster.PodOptions{Owner: "ReplicaSet", Labels: labels})
	c.WaitRunning("torn")
	c.PDB("one", labels, 0)
	c.PDB("two", labels, 0)
	look(t, d)
	if err := d.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pods := look(t, d); !pods.Fatal || !strings.Contains(pods.Why, "default/torn") ||
		!strings.Contains(pods.Why, "more than one PodDisruptionBudget") {
		t.Errorf("%+v", pods)
	}
}

func TestAnUnmanagedPodBlocksUntilItIsAllowed(t *testing.T) {
	c, d := agent(t, "unmanaged")
	c.Pod("unmanaged", "alone", cluster.PodOptions{})
	c.WaitRunning("alone")
	if pods := look(t, d); !pods.Fatal || !strings.Contains(pods.Why, "default/alone") || pods.Left != 1 {
		t.Errorf("%+v", pods)
	}
	if err := d.Pass(t.Context()); err != nil || d.Evictions() != 0 {
		t.Errorf("%v, %d evictions", err, d.Evictions())
	}
}

func TestAPodThatHangsIsNamed(t *testing.T) {
	c, d := agent(t, "hangs")
	c.Pod("hangs", "slow", cluster.PodOptions{Owner: "ReplicaSet", Finalizers: []string{"example.com/slow"}})
	c.WaitRunning("slow")
	look(t, d)
	if err := d.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	pods := look(t, d)
	if pods.Left != 1 || pods.Fatal || pods.Why != "pod default/slow is ending" || pods.Next == 0 {
		t.Errorf("%+v", pods)
	}
	c.MustKubectl("patch", "pod", "slow", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	drained(t, c, d)
}

// optional applies an optional manifest until the test ends.
func optional(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	root, err := cluster.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	file := root + "/packaging/kubernetes/optional/" + name
	c.MustKubectl("apply", "-f", file)
	t.Cleanup(func() { c.MustKubectl("delete", "-f", file) })
}

func TestDeletionNeedsTheOptionalRight(t *testing.T) {
	c, d := agent(t, "deletion")
	labels := map[string]string{"budget": "never"}
	c.Pod("deletion", "never", cluster.PodOptions{Owner: "ReplicaSet", Labels: labels})
	c.WaitRunning("never")
	c.PDB("never", labels, 1)
	look(t, d)
	if err := d.Delete(t.Context()); err == nil || !strings.Contains(err.Error(), "optional/delete-pods.yaml") ||
		!strings.Contains(err.Error(), `cannot delete resource "pods"`) {
		t.Errorf("got %v", err)
	}
	optional(t, c, "delete-pods.yaml")
	c.Eventually("deletion is allowed", 10*time.Second, func() bool { return d.Delete(t.Context()) == nil })
	drained(t, c, d)
}

func TestTheOptionalPolicyConfinesEvictionsToTheOwnNode(t *testing.T) {
	c, d := agent(t, "confined")
	c.NewKubelet("foreign", cluster.KubeletOptions{})
	c.Pod("foreign", "theirs", cluster.PodOptions{Owner: "ReplicaSet"})
	c.Pod("confined", "mine", cluster.PodOptions{Owner: "ReplicaSet"})
	c.WaitRunning("theirs", "mine")
	optional(t, c, "policy-eviction.yaml")
	k := kubetest.Connect(t, c.AgentKubeconfig("confined"))
	c.Eventually("the policy refuses", 20*time.Second, func() bool {
		err := k.Core().Post().Namespace("default").Resource("pods").Name("theirs").SubResource("eviction").
			Body([]byte(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"theirs","namespace":"default"},` +
				`"deleteOptions":{"dryRun":["All"]}}`)).
			Do(t.Context()).Error()
		return err != nil &&
			strings.Contains(err.Error(), `kured-agent on node "confined" may not evict pod default/theirs of another node`)
	})
	drained(t, c, d)
}
