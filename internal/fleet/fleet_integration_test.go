// SPDX-License-Identifier: Apache-2.0
//go:build integration

package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/fleet"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
	"github.com/kured-agent/kured-agent/internal/slot"
	"github.com/kured-agent/kured-agent/test/cluster"
)

const namespace = "kured-agent"

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	cluster.Main(m, "fleet-test", cluster.Options{ControllerManager: true}, &shared)
}

var program = sync.OnceValues(func() (string, error) {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(shared.Dir(), "kubectl-kured")
	build := exec.Command("go", "build", "-o", path, "./cmd/kubectl-kured")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// kured runs the program as whoever the kubeconfig says and returns what it prints; an error carries its words.
func kured(t *testing.T, kubeconfig string, args ...string) (string, error) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), path, append([]string{"--kubeconfig", kubeconfig}, args...)...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return string(out), err
}

// admin is kured by an admin, and must succeed and say this.
func admin(t *testing.T, says string, args ...string) string {
	t.Helper()
	out, err := kured(t, shared.For(t).Admin(), args...)
	if err != nil || !strings.Contains(out, says) {
		t.Fatalf("%v says %q, %v; want %q", args, out, err, says)
	}
	return out
}

// uniquePool is a pool of its own for this test, also a label of its nodes.
func uniquePool() string { return fmt.Sprintf("p%x", time.Now().UnixNano()) }

func makeNodes(t *testing.T, n int, pool string) {
	t.Helper()
	c := shared.For(t)
	for i := range n {
		name := fmt.Sprintf("%s-%d", pool, i)
		body := map[string]any{"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": name, "labels": map[string]string{"pool": pool}}}
		if err := c.Do(t.Context(), http.MethodPost, "/api/v1/nodes", body, nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := c.Do(context.Background(), http.MethodDelete, "/api/v1/nodes?labelSelector=pool%3D"+pool, nil, nil); err != nil {
			t.Error(err)
		}
	})
}

func slots(t *testing.T, pool string) string {
	t.Helper()
	return shared.For(t).MustKubectl("-n", namespace, "get", "configmap", "kured-agent-pools", "-o",
		"jsonpath={.data."+pool+"}")
}

func waiter(t *testing.T, name, pool string) (*slot.Client, slot.Request) {
	t.Helper()
	c := shared.For(t)
	k := kubetest.Connect(t, c.AgentKubeconfig(name))
	return slot.New(k.Core(), k.Coordination(), slot.Options{Namespace: namespace, Node: name}),
		slot.Request{Pool: pool, NodeUID: string(c.Node(name).UID), Boot: "b1"}
}

// take acquires, with patience for the policy's view of the ConfigMap, which lags a moment behind.
func take(t *testing.T, a *slot.Client, r slot.Request) slot.Result {
	t.Helper()
	var got slot.Result
	shared.For(t).Eventually("a slot is given", 10*time.Second, func() bool {
		var err error
		got, err = a.Acquire(t.Context(), r)
		return err == nil && got.Taken
	})
	return got
}

func TestAPercentageOfTheNodesBecomesANumber(t *testing.T) {
	big, small := uniquePool(), uniquePool()
	makeNodes(t, 25, big)
	makeNodes(t, 3, small)
	sync := func(pool string, more ...string) []string {
		return append([]string{"pools", "sync", "--pool", pool, "--max-unavailable", "10%", "--selector", "pool=" + pool}, more...)
	}
	admin(t, "(dry run: nothing was changed)", sync(big, "--dry-run")...)
	if got := slots(t, big); got != "" {
		t.Errorf("the dry run wrote %q", got)
	}
	admin(t, "has 2 slots, 10% of 25 nodes, and is new", sync(big)...)
	admin(t, "has 1 slot, 10% of 3 nodes, and is new", sync(small)...)
	admin(t, "as before", sync(small)...)
	if slots(t, big) != "2" || slots(t, small) != "1" {
		t.Errorf("%q, %q", slots(t, big), slots(t, small))
	}
	admin(t, "0       -", "pools")
	if out, err := kured(t, shared.For(t).Admin(), "pools", "sync", "--pool", big, "--max-unavailable", "10%", "-l", "pool=typo"); err == nil ||
		!strings.Contains(err.Error(), "there is none") || slots(t, big) != "2" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestMoreNodesThanAPageAreCounted(t *testing.T) {
	pool := uniquePool()
	makeNodes(t, 260, pool)
	admin(t, "has 26 slots, 10% of 260 nodes", "pools", "sync", "--pool", pool, "--max-unavailable", "10%", "-l", "pool="+pool)
	// Some of the same nodes, found by their role; other tests have nodes as well.
	admin(t, "(dry run", "pools", "sync", "--pool", "default", "--max-unavailable", "100%", "--dry-run")
}

// rival writes another key of the ConfigMap right before each of the first patches.
type rival struct {
	next  http.RoundTripper
	write func()
	times int
}

func (r *rival) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPatch && r.times > 0 {
		r.times--
		r.write()
	}
	return r.next.RoundTrip(request)
}

func TestAConcurrentWriterIsNotOverwritten(t *testing.T) {
	ours, theirs := uniquePool(), uniquePool()
	patch := func() {
		shared.For(t).MustKubectl("-n", namespace, "patch", "configmap", "kured-agent-pools", "--type", "merge", "-p",
			fmt.Sprintf(`{"data":{%q:"%d"}}`, theirs, time.Now().UnixNano()%1000))
	}
	client := func(conflicts int) *fleet.Client {
		config := shared.For(t).AdminConfig()
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &rival{next: next, write: patch, times: conflicts}
		})
		c, err := fleet.New(config, fleet.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if change, err := client(3).SetSlots(t.Context(), ours, 2); err != nil || !change.Changed() || change.Before != nil {
		t.Errorf("%+v, %v", change, err)
	}
	if slots(t, ours) != "2" || slots(t, theirs) == "" {
		t.Errorf("ours %q, theirs %q", slots(t, ours), slots(t, theirs))
	}
	if _, err := client(100).SetSlots(t.Context(), ours, 3); err == nil || !strings.Contains(err.Error(), "run it again") {
		t.Errorf("against an endless rival: %v", err)
	}
	if slots(t, ours) != "2" {
		t.Errorf("ours %q", slots(t, ours))
	}
}

func TestAReleasedSlotGoesToTheNodeThatWaits(t *testing.T) {
	pool := uniquePool()
	makeNodes(t, 2, pool)
	first, second := pool+"-0", pool+"-1"
	admin(t, "has 1 slot", "pools", "set", pool, "1")
	a, ra := waiter(t, first, pool)
	held := take(t, a, ra)
	b, rb := waiter(t, second, pool)
	if got, err := b.Acquire(t.Context(), rb); err != nil || got.Taken {
		t.Fatalf("%+v, %v", got, err)
	}
	if out := admin(t, "slot-"+pool+"-0", "status"); !strings.Contains(out, "down") {
		t.Errorf("%s", out)
	}
	c := shared.For(t)
	report := func(ready, boot string) {
		c.MustKubectl("patch", "node", first, "--subresource", "status", "--type", "merge", "-p", fmt.Sprintf(
			`{"status":{"nodeInfo":{"bootID":%q},"conditions":[{"type":"Ready","status":%q}]}}`, boot, ready))
	}

	// While it is Ready in the same boot, it may be draining.
	report("True", "b1")
	if out, err := kured(t, c.Admin(), "release", first, "--yes"); err == nil || !strings.Contains(err.Error(), "may be draining") {
		t.Errorf("%q, %v", out, err)
	}
	if ours, why, err := a.Verify(t.Context(), held.Name, held.UID); !ours {
		t.Errorf("the slot was freed all the same: %s, %v", why, err)
	}
	// Nobody is there to confirm.
	report("False", "b1")
	if out, err := kured(t, c.Admin(), "release", first); err == nil || !strings.Contains(err.Error(), "not confirmed") {
		t.Errorf("%q, %v", out, err)
	}
	admin(t, held.Name+" is free", "release", first, "--yes")
	if ours, why, err := a.Verify(t.Context(), held.Name, held.UID); ours || err != nil || !strings.Contains(why, "somebody released it") {
		t.Errorf("%v %q %v", ours, why, err)
	}
	got := take(t, b, rb)
	if got.Name != held.Name || got.UID == held.UID {
		t.Errorf("%+v", got)
	}
	admin(t, "holds no slot", "release", first, "--yes")
}

func TestAPauseKeepsEveryoneWaiting(t *testing.T) {
	pool := uniquePool()
	makeNodes(t, 1, pool)
	admin(t, "has 1 slot", "pools", "set", pool, "1")
	a, r := waiter(t, pool+"-0", pool)
	admin(t, "paused: change freeze", "pause", "change freeze")
	resumed := false
	t.Cleanup(func() {
		if !resumed {
			shared.For(t).MustKubectl("-n", namespace, "patch", "configmap", "kured-agent-pools", "--type", "merge", "-p",
				`{"data":{"paused":null}}`)
		}
	})
	if got, err := a.Acquire(t.Context(), r); err != nil || got.Taken || got.Why != "the fleet is paused: change freeze" {
		t.Errorf("%+v, %v", got, err)
	}
	admin(t, "PAUSED: change freeze", "status")
	admin(t, `it was paused: "change freeze"`, "resume")
	resumed = true
	take(t, a, r)
}

func TestAHoldIsAnAnnotationOfTheNode(t *testing.T) {
	pool := uniquePool()
	makeNodes(t, 1, pool)
	name := pool + "-0"
	admin(t, "is held: replacing a disk", "hold", name, "replacing a disk")
	if got := shared.For(t).Node(name).Annotations["kured-agent/hold"]; got != "replacing a disk" {
		t.Errorf("%q", got)
	}
	if out := admin(t, "replacing a disk", "status"); !strings.Contains(out, "idle") {
		t.Errorf("%s", out)
	}
	admin(t, `it was: "replacing a disk"`, "unhold", name)
	if got, there := shared.For(t).Node(name).Annotations["kured-agent/hold"]; there {
		t.Errorf("%q", got)
	}
}

// TestTheCronJobOfTheManualMayDoItsWork applies what docs/operations.md shows and counts with its credential.
func TestTheCronJobOfTheManualMayDoItsWork(t *testing.T) {
	root, err := cluster.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, manifest, _ := strings.Cut(string(text), "```yaml\napiVersion: batch/v1\n")
	manifest, _, found := strings.Cut(manifest, "```\n")
	if !found {
		t.Fatal("docs/operations.md has no CronJob")
	}
	c := shared.For(t)
	c.Apply("apiVersion: batch/v1\n" + manifest)
	t.Cleanup(func() { c.MustKubectl("-n", namespace, "delete", "cronjob", "pools-sync") })

	pool := uniquePool()
	makeNodes(t, 25, pool)
	config := rest.AnonymousClientConfig(c.AdminConfig())
	config.BearerToken = strings.TrimSpace(c.MustKubectl("-n", namespace, "create", "token", "pools-sync"))
	client, err := fleet.New(config, fleet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	members, err := fleet.MembersOf(pool, "pool="+pool)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	c.Eventually("its rights are there", 10*time.Second, func() bool {
		n, err = client.Count(t.Context(), members)
		return err == nil
	})
	if _, err := client.SetSlots(t.Context(), pool, fleet.Resolve(10, n)); err != nil || slots(t, pool) != "2" {
		t.Errorf("%d nodes, %q slots, %v", n, slots(t, pool), err)
	}
	// And no more than that.
	if _, err := client.Hold(t.Context(), pool+"-0", &pool); err == nil ||
		!strings.Contains(err.Error(), "lacks this right") {
		t.Errorf("%v", err)
	}
}
