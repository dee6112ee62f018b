// SPDX-License-Identifier: Apache-2.0
//go:build integration

package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kured-agent/kured-agent/test/cluster"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
	"github.com/kured-agent/kured-agent/internal/node"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const key = "kured-agent/reboot-required"

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	cluster.Main(m, "node-test", cluster.Options{ControllerManager: true}, &shared)
}

// agent registers a node and returns its client with the confined, node-bound token.
func agent(t *testing.T, name string, startup ...string) (*cluster.Cluster, *kube.Client, *node.Client) {
	t.Helper()
	c := shared.For(t)
	c.NewKubelet(name, cluster.KubeletOptions{})
	k := kubetest.Connect(t, c.AgentKubeconfig(name))
	o := node.Options{Name: name, TaintKey: key, TaintEffect: "PreferNoSchedule", StartupTaints: startup}
	return c, k, node.New(k.Core(), o)
}

func do(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func path(name string) string { return "/api/v1/nodes/" + name }

// admin patches the Node as somebody else.
func admin(t *testing.T, c *cluster.Cluster, name string, patch map[string]any) {
	t.Helper()
	if err := c.Do(t.Context(), http.MethodPatch, path(name), patch, nil, string(types.MergePatchType)); err != nil {
		t.Fatal(err)
	}
}

// taints are the entries as the server sends them, ours and those of the node controller left out on request.
func taints(t *testing.T, c *cluster.Cluster, name string) []string {
	t.Helper()
	var n struct {
		Spec struct {
			Taints []json.RawMessage `json:"taints"`
		} `json:"spec"`
	}
	if err := c.Do(t.Context(), http.MethodGet, path(name), nil, &n); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, raw := range n.Spec.Taints {
		if !strings.Contains(string(raw), `"node.kubernetes.io/`) {
			out = append(out, string(raw))
		}
	}
	return out
}

const ours = `{"key":"kured-agent/reboot-required","effect":"PreferNoSchedule"}`

func sorted(raw string) string {
	var v any
	if json.Unmarshal([]byte(raw), &v) != nil {
		return raw
	}
	out, _ := json.Marshal(v)
	return string(out)
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	normal := func(list []string) []string {
		out := make([]string, len(list))
		for i := range list {
			out[i] = sorted(list[i])
		}
		return out
	}
	if diff := cmp.Diff(normal(want), normal(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestNoForeignTaintIsLostInARaceWithAnotherWriter(t *testing.T) {
	c, _, agent := agent(t, "race")
	pinned := map[string]any{"key": "example.com/pinned", "value": "v", "effect": "NoExecute",
		"timeAdded": "2026-11-30T12:00:00Z"}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	mine := make(chan error, 1)
	rounds := 0
	go func() {
		defer close(mine)
		for ctx.Err() == nil {
			boot := fmt.Sprintf("boot-%d", rounds)
			for _, step := range []func() error{
				func() error { return agent.Taint(ctx, "race") },
				func() error { return agent.Cordon(ctx, boot) },
				func() error { return agent.RollBack(ctx) },
				func() error { return agent.Clean(ctx) },
			} {
				if err := step(); err != nil && ctx.Err() == nil {
					mine <- err
					return
				}
			}
			rounds++
		}
	}()
	// The other writer rotates, grows and shrinks its list, and looks each time whether it still stands as it was left.
	var left []string
	writes, lost := 0, 0
	pace := time.NewTicker(15 * time.Millisecond) // about sixty writes a second, a hundred times of what a real Node sees
	defer pace.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		<-pace.C
		var n struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
			Spec struct {
				Taints []map[string]any `json:"taints"`
			} `json:"spec"`
		}
		if err := c.Do(ctx, http.MethodGet, path("race"), nil, &n); err != nil {
			break
		}
		var found []string
		var others, theirs []map[string]any
		for _, taint := range n.Spec.Taints {
			if strings.HasPrefix(taint["key"].(string), "example.com/") {
				raw, _ := json.Marshal(taint)
				found = append(found, string(raw))
				theirs = append(theirs, taint)
			} else {
				others = append(others, taint)
			}
		}
		if !slices.Equal(found, left) {
			lost++
			t.Errorf("write %d: left %v, found %v", writes, left, found)
		}
		switch {
		case len(theirs) < 2:
			theirs = append(theirs, pinned)
			if len(theirs) == 2 {
				theirs = []map[string]any{theirs[1], {"key": "example.com/first", "effect": "NoSchedule"}}
			}
		case i%3 == 0 && len(theirs) < 7:
			theirs = append(theirs,
				map[string]any{"key": fmt.Sprintf("example.com/n-%d", i), "value": fmt.Sprint(i), "effect": "NoSchedule"})
		case i%3 == 1:
			theirs = append(theirs[1:], theirs[0])
		case len(theirs) > 2:
			theirs = slices.DeleteFunc(theirs,
				func(m map[string]any) bool { return strings.HasPrefix(m["key"].(string), "example.com/n-") })
		}
		if i == 0 {
			theirs = []map[string]any{pinned}
		}
		var want []string
		for _, taint := range theirs {
			raw, _ := json.Marshal(taint)
			want = append(want, string(raw))
		}
		err := c.Do(ctx, http.MethodPatch, path("race"), map[string]any{
			"metadata": map[string]any{"resourceVersion": n.Metadata.ResourceVersion},
			"spec":     map[string]any{"taints": append(theirs, others...)},
		}, nil, string(types.MergePatchType))
		var status *cluster.StatusError
		switch {
		case err == nil:
			left, writes = want, writes+1
		case errors.As(err, &status) && status.Code == http.StatusConflict:
			left = found
		case ctx.Err() != nil:
		default:
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-mine; err != nil {
		t.Errorf("after %d rounds: %v", rounds, err)
	}
	t.Logf("%d rounds of four patches against %d writes of the other, %d accepted patches, %d lost", rounds, writes,
		agent.Writes(), lost)
	if rounds < 2 || writes < 20 {
		t.Errorf("hardly a race: %d rounds, %d writes", rounds, writes)
	}
}

func TestOnlyOurEntryOfOurKeyIsOurs(t *testing.T) {
	c, _, agent := agent(t, "same-key")
	noSchedule := `{"key":"kured-agent/reboot-required","effect":"NoSchedule"}`
	noExecute := `{"key":"kured-agent/reboot-required","value":"theirs","effect":"NoExecute",` +
		`"timeAdded":"2026-11-30T12:00:00Z"}`
	admin(t, c, "same-key",
		map[string]any{"spec": map[string]any{"taints": []json.RawMessage{[]byte(noSchedule), []byte(noExecute)}}})
	do(t, agent.Taint(t.Context(), ""))
	same(t, "tainted", taints(t, c, "same-key"), noSchedule, noExecute, ours)
	do(t, agent.Clean(t.Context()))
	same(t, "clean", taints(t, c, "same-key"), noSchedule, noExecute)
}

func TestAValueOfSomebodyElseInOurPlaceStays(t *testing.T) {
	c, _, agent := agent(t, "value")
	theirs := `{"key":"kured-agent/reboot-required","value":"theirs","effect":"PreferNoSchedule"}`
	admin(t, c, "value", map[string]any{"spec": map[string]any{"taints": []json.RawMessage{[]byte(theirs)}}})
	for _, step := range []struct {
		do      func() error
		tainted bool
	}{
		{func() error { return nil }, false},
		{func() error { return agent.Taint(t.Context(), "kernel") }, true},
		{func() error { return agent.Clean(t.Context()) }, false},
	} {
		do(t, step.do())
		n, err := agent.Read(t.Context(), 0)
		if err != nil || n.Tainted != step.tainted {
			t.Errorf("tainted %v, want %v (%v)", n.Tainted, step.tainted, err)
		}
		same(t, "taints", taints(t, c, "value"), theirs)
	}
}

func TestTheWholeCycleTwiceLeavesNothingAndWritesOnceEach(t *testing.T) {
	c, _, agent := agent(t, "twice")
	ctx := t.Context()
	before := c.Node("twice")
	for i, step := range []func() error{
		func() error { return agent.Taint(ctx, "kernel") },
		func() error { return agent.Cordon(ctx, "b1") },
		func() error { return agent.RollBack(ctx) },
		func() error { return agent.Cordon(ctx, "b1") },
		func() error { return agent.Clean(ctx) },
	} {
		do(t, step(), step())
		if agent.Writes() != int64(i+1) {
			t.Errorf("step %d: %d writes", i, agent.Writes())
		}
	}
	c.Eventually("the controllers have undone theirs", 10*time.Second,
		func() bool { return len(c.Node("twice").Spec.Taints) == 0 })
	after := c.Node("twice")
	if diff := cmp.Diff(before.Annotations, after.Annotations); diff != "" || after.Spec.Unschedulable {
		t.Errorf("unschedulable %v, annotations (-before +after):\n%s", after.Spec.Unschedulable, diff)
	}
}

func TestACordonOfAHumanOutlivesEverything(t *testing.T) {
	c, _, agent := agent(t, "human")
	ctx := t.Context()
	c.MustKubectl("cordon", "human")
	for name, step := range map[string]func() error{
		"success": func() error {
			return errors.Join(agent.Taint(ctx, ""), agent.Cordon(ctx, "b1"), agent.Clean(ctx))
		},
		"failure": func() error {
			return errors.Join(agent.Taint(ctx, ""), agent.Cordon(ctx, "b1"), agent.RollBack(ctx), agent.Clean(ctx))
		},
	} {
		do(t, step())
		n, err := agent.Read(ctx, 0)
		if err != nil || !n.Unschedulable || n.Marker != "" || n.Tainted {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
	}
	for annotation := range c.Node("human").Annotations {
		if strings.HasPrefix(annotation, "kured-agent/") || strings.HasPrefix(annotation, "karpenter") ||
			strings.HasPrefix(annotation, "cluster-autoscaler") {
			t.Errorf("left %q", annotation)
		}
	}
}

func TestACordonThatAHumanRenewedIsTheirs(t *testing.T) {
	c, _, agent := agent(t, "renewed")
	ctx := t.Context()
	do(t, agent.Cordon(ctx, "b1"))
	c.MustKubectl("uncordon", "renewed")
	c.MustKubectl("cordon", "renewed")
	do(t, agent.Clean(ctx))
	if n, err := agent.Read(ctx, 0); err != nil || !n.Unschedulable || n.Marker != "" {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestForeignAutoscalerAnnotationsStay(t *testing.T) {
	c, _, agent := agent(t, "autoscaler")
	const karpenter, scaler = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	admin(t, c, "autoscaler", map[string]any{"metadata": map[string]any{"annotations": map[string]any{karpenter: "true"}}})
	do(t, agent.Cordon(t.Context(), "b1"))
	if got := c.Node("autoscaler").Annotations; got[scaler] != "true" || got[karpenter] != "true" {
		t.Errorf("while cordoned: %v", got)
	}
	do(t, agent.Clean(t.Context()))
	got := c.Node("autoscaler").Annotations
	if _, there := got[scaler]; there || got[karpenter] != "true" {
		t.Errorf("afterwards: %v", got)
	}
}

func TestEveryOverstepIsRefusedWithItsReason(t *testing.T) {
	c, k, _ := agent(t, "mine")
	c.NewKubelet("yours",
		cluster.KubeletOptions{Taints: []corev1.Taint{{Key: "example.com/x", Effect: corev1.TaintEffectNoSchedule}}})
	for _, o := range []struct{ name, node, patch, want string }{
		{"taint of another node", "yours", `{"spec":{"taints":[` + ours + `]}}`,
			`kured-agent on node "mine" may not modify node "yours"`},
		{"foreign key", "mine", `{"spec":{"taints":[{"key":"example.com/y","effect":"NoSchedule"}]}}`,
			"only change taints with its own key"},
		{"NoExecute", "mine", `{"spec":{"taints":[{"key":"kured-agent/reboot-required","effect":"NoExecute"}]}}`,
			"may not be NoExecute"},
		{"cordon without a marker", "mine", `{"spec":{"unschedulable":true}}`, "cordon only with its marker"},
		{"label", "mine", `{"metadata":{"labels":{"a":"b"}}}`, "may not change labels"},
		{"foreign annotation", "mine", `{"metadata":{"annotations":{"a":"b"}}}`, "only change its own annotations"},
		{"pod range", "mine", `{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`,
			"may not change other spec fields"},
		{"finalizer", "mine", `{"metadata":{"finalizers":["example.com/f"]}}`, "may not change finalizers"},
	} {
		t.Run(o.name, func(t *testing.T) {
			err := k.Core().Patch(types.MergePatchType).Resource("nodes").Name(o.node).Body([]byte(o.patch)).
				Do(t.Context()).Error()
			if err == nil || !strings.Contains(err.Error(), o.want) {
				t.Errorf("got %v, want %q", err, o.want)
			}
		})
	}
	t.Run("cordon of a human", func(t *testing.T) {
		c.MustKubectl("cordon", "mine")
		const mark, uncordon = `"metadata":{"annotations":{"kured-agent/cordoned":"b"}}`, `"spec":{"unschedulable":null}`
		for patch, want := range map[string]string{
			"{" + uncordon + "}":              "uncordon only what it cordoned",
			"{" + mark + "}":                  "marker on a cordon of somebody else",
			"{" + mark + "," + uncordon + "}": "uncordon only what it cordoned",
		} {
			err := k.Core().Patch(types.MergePatchType).Resource("nodes").Name("mine").Body([]byte(patch)).
				Do(t.Context()).Error()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v", patch, err)
			}
		}
	})
	t.Run("status and deletion", func(t *testing.T) {
		if err := k.Core().Patch(types.MergePatchType).Resource("nodes").Name("mine").SubResource("status").
			Body([]byte(`{"status":{"phase":"x"}}`)).Do(t.Context()).Error(); err == nil ||
			!strings.Contains(err.Error(), "forbidden") {
			t.Errorf("status: %v", err)
		}
		if err := k.Core().Delete().Resource("nodes").Name("mine").Do(t.Context()).Error(); err == nil ||
			!strings.Contains(err.Error(), "forbidden") {
			t.Errorf("deletion: %v", err)
		}
	})
}

func TestANodeThatIsNotFitIsNotGivenBack(t *testing.T) {
	c, _, agent := agent(t, "unfit")
	ctx := t.Context()
	do(t, agent.Taint(ctx, ""), agent.Cordon(ctx, "b1"))
	// The newest answer says Ready; in truth the kubelet has reported otherwise since, so the write meets a conflict.
	notReady := []map[string]any{{"type": "Ready", "status": "False"}}
	status := map[string]any{"status": map[string]any{"conditions": notReady}}
	kind := string(types.StrategicMergePatchType)
	if err := c.Do(ctx, http.MethodPatch, path("unfit")+"/status", status, nil, kind); err != nil {
		t.Fatal(err)
	}
	if err := agent.Return(ctx, func(n plan.Node) bool { return n.Ready }); err == nil {
		t.Error("given back")
	}
	if n, err := agent.Read(ctx, 0); err != nil || !n.Unschedulable || n.Marker != "b1" || !n.Tainted {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestStartUpTaintsNeedTheOptionalPatchOfThePolicy(t *testing.T) {
	const cilium = "node.cilium.io/agent-not-ready"
	c, _, agent := agent(t, "startup", cilium)
	ctx := t.Context()
	admin(t, c, "startup", map[string]any{"spec": map[string]any{"taints": []map[string]any{
		{"key": cilium, "effect": "NoExecute"}, {"key": "example.com/stays", "effect": "NoSchedule"}}}})
	do(t, agent.Taint(ctx, ""), agent.Cordon(ctx, "b1"))
	fit := func(n plan.Node) bool { return n.Ready }
	err := agent.Return(ctx, fit)
	if err == nil || !strings.Contains(err.Error(), "only change taints with its own key") ||
		!strings.Contains(err.Error(), "startup-taints.yaml") {
		t.Errorf("strict: %v", err)
	}
	n, err := agent.Read(ctx, 0)
	want := plan.Node{UID: n.UID, Startup: true, BootID: n.BootID, Ready: true, Heartbeat: n.Heartbeat}
	if diff := cmp.Diff(want, n); err != nil || diff != "" || time.Since(n.Heartbeat).Abs() > time.Minute {
		t.Errorf("strict: %v, node (-want +got):\n%s", err, diff)
	}
	root, err := cluster.ModuleRoot()
	do(t, err)
	c.MustKubectl("patch", "validatingadmissionpolicy", "kured-agent-node", "--type", "json",
		"--patch-file", root+"/packaging/kubernetes/optional/startup-taints.yaml")
	t.Cleanup(func() { c.MustKubectl("apply", "-f", root+"/packaging/kubernetes/policy-node.yaml") })
	c.Eventually("the policy lets the start-up taint go", 20*time.Second,
		func() bool { return agent.Return(ctx, fit) == nil })
	same(t, "returned", taints(t, c, "startup"), `{"key":"example.com/stays","effect":"NoSchedule"}`)
}
