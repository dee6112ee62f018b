// SPDX-License-Identifier: Apache-2.0

//go:build integration

package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/lab"
)

// kubereboot/kured#89: a version of Kubernetes dropped an API group that kured asked for.
func TestAgentsAskOnlyForAPIsThatAreStable(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "stable", lab.Options{Config: "[[gate.pods]]\nselector = \"app=backup\"\n"})
	c.Pod(m.Name, "stable-1", cluster.PodOptions{Owner: "ReplicaSet", OwnerName: "stable"})
	c.WaitRunning("stable-1")
	m.Login.On("RebootWithFlags", bustest.Refuse("org.freedesktop.DBus.Error.AccessDenied", "Permission denied"))
	m.Start()
	m.Require("kernel")
	m.WaitPhase("Waiting") // refused: what an Event needs is asked for too
	m.Unrequire()
	m.WaitClean()
	stable := []string{"/api/v1/", "/apis/coordination.k8s.io/v1/", "/apis/authorization.k8s.io/v1/"}
	seen := map[string]bool{}
	events := func(r cluster.Request) bool { return r.User == cluster.AgentUser && r.Resource == "events" }
	if len(c.WaitRequests(events, 1, 10*time.Second)) == 0 {
		t.Error("no Event was posted")
	}
	for _, r := range c.Requests(cluster.ByUser(cluster.AgentUser)) { // of the agents of all other tests so far, too
		if strings.HasPrefix(r.URI, "/apis/authentication.k8s.io/v1/selfsubjectreviews") {
			continue // of "kured-agent enroll"; stable since Kubernetes 1.28, and it does without where it is missing
		}
		at := slices.IndexFunc(stable, func(prefix string) bool { return strings.HasPrefix(r.URI, prefix) })
		if at < 0 {
			t.Errorf("%s %s", r.Verb, r.URI)
			continue
		}
		seen[stable[at]] = true
	}
	if len(seen) != len(stable) {
		t.Errorf("of %q only %v were asked for", stable, seen)
	}
}
