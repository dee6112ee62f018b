// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

func readyPod(name, phase, ready string) map[string]any {
	return map[string]any{"metadata": map[string]any{"name": name, "namespace": "kube-system"},
		"status": map[string]any{"phase": phase, "conditions": []any{
			map[string]any{"type": "Initialized", "status": "True"}, map[string]any{"type": "Ready", "status": ready}}}}
}

// kubereboot/kured#76, #277, #874: the next node went before the pods of this one were of any use.
func TestEveryPodThatTheNodeNeedsMustBeThereAndReady(t *testing.T) {
	for _, c := range []struct {
		name string
		pods []any
		want string // part of what is missing; empty: nothing is
	}{
		{"Ready", []any{readyPod("cni-1", "Running", "True")}, ""},
		{"not there yet", nil, `no pod "app=cni" is on this node`},
		{"not Ready", []any{readyPod("cni-1", "Running", "False")}, "are not Ready: kube-system/cni-1"},
		{"not known to be", []any{readyPod("cni-1", "Running", "Unknown")}, "kube-system/cni-1"},
		{"Pending", []any{map[string]any{"metadata": map[string]any{"name": "cni-1", "namespace": "kube-system"},
			"status": map[string]any{"phase": "Pending"}}}, "kube-system/cni-1"},
		{"one of two", []any{readyPod("cni-1", "Running", "True"), readyPod("cni-2", "Running", "False")}, "not Ready: kube-system/cni-2"},
		{"only one that ended", []any{readyPod("cni-0", "Succeeded", "False")}, "no pod"},
		{"one that ended beside it", []any{readyPod("cni-0", "Failed", "False"), readyPod("cni-1", "Running", "True")}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=n1,") {
					t.Errorf("asked for the pods of other nodes: %s", r.URL)
				}
				kubetest.JSON(w, 200, map[string]any{"kind": "PodList", "apiVersion": "v1", "items": c.pods})
			}))
			got, err := NewReady(k.Core(), "n1", []string{"app=cni"}).Missing(t.Context())
			if err != nil || (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

func TestPodsThatCannotBeListedAreNotReady(t *testing.T) {
	k, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		kubetest.Status(w, 403, "Forbidden", "no right", nil)
	}))
	if got, err := NewReady(k.Core(), "n1", []string{"app=cni"}).Missing(t.Context()); err == nil {
		t.Errorf("got %q", got)
	}
	if got, err := NewReady(k.Core(), "n1", nil).Missing(t.Context()); err != nil || got != "" {
		t.Errorf("without a selector: %q, %v", got, err)
	}
}
