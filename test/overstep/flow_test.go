// SPDX-License-Identifier: Apache-2.0
//go:build integration

package overstep

import (
	"strings"
	"testing"
	"time"
)

// queues shows that with the optional FlowSchema the requests of agents, and of nobody else, have their own queue.
func (w *world) queues(t *testing.T) {
	w.MustKubectl("apply", "-f", manifest("optional/flowschema.yaml"))
	level := strings.TrimSpace(
		w.MustKubectl("get", "prioritylevelconfiguration", "kured-agent", "-o", "jsonpath={.metadata.uid}"))
	for _, p := range w.principals {
		w.Eventually(p.name+" has the right queue", 20*time.Second, func() bool {
			return (w.level(t, p) == level) == !p.stranger
		})
	}
}

// level is the priority level that a request is put in.
func (w *world) level(t *testing.T, p principal) string {
	response, err := p.client.Get(w.URL() + "/api/v1/nodes/" + Mine)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.Header.Get("X-Kubernetes-PF-PriorityLevel-UID")
}
