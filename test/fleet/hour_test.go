// SPDX-License-Identifier: Apache-2.0

//go:build fleet

package fleet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	hourWarmUp = 45 * time.Minute // the nodes have been counted again by then
	hour       = time.Hour
)

// hourOfWaiting is the same 5,000 agents on a faked API server and in virtual time: what an agent asks only
// now and then is not to be seen in two minutes.
func hourOfWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &canned{tainted: map[string]bool{}, counts: map[string]int{}}
		ctx, stop := context.WithCancel(t.Context())
		agents := make([]*waiter, waiting)
		for i := range agents {
			name := fmt.Sprintf("default-%04d", i)
			agents[i] = newWaiter(t, "http://api", name, "uid-"+name, "default", 10+i%41, api, nil)
			agents[i].start(ctx)
			time.Sleep(75 * time.Second / waiting)
		}
		began := api.take()
		time.Sleep(hourWarmUp)
		early := api.take()
		time.Sleep(hour)
		counts := api.take()
		stop()
		for _, a := range agents {
			<-a.done
		}
		var out strings.Builder
		rate := perSecond(counts, hour)
		fmt.Fprintf(&out, "\nrequests/s of %d waiting agents, an hour of virtual time after %s: %.1f, target at most 20%s\n",
			waiting, hourWarmUp, rate, mark(rate <= 20))
		for _, kind := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&out, "  %-30s %.2f\n", kind, float64(counts[kind])/hour.Seconds())
		}
		fmt.Fprintf(&out, "while they started: %v\nin the %s after that: %.1f\n", began, hourWarmUp, perSecond(early, hourWarmUp))
		t.Log(out.String())
	})
}

func perSecond(counts map[string]int, over time.Duration) float64 {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64(sum) / over.Seconds()
}

// canned is an API server on which nothing changes but the taints.
type canned struct {
	mu      sync.Mutex
	tainted map[string]bool
	counts  map[string]int
}

func (c *canned) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := c.counts
	c.counts = map[string]int{}
	return counts
}

func (c *canned) RoundTrip(r *http.Request) (*http.Response, error) {
	kind, body := c.answer(r)
	c.mu.Lock()
	c.counts[kind]++
	c.mu.Unlock()
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewBufferString(body)),
	}, nil
}

func (c *canned) answer(r *http.Request) (kind, body string) {
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/leases"):
		return "list leases", `{"kind":"LeaseList","apiVersion":"coordination.k8s.io/v1","metadata":{"resourceVersion":"1"},` +
			`"items":[{"metadata":{"name":"slot-default-0","uid":"u","labels":{"kured-agent/pool":"default"}},` +
			`"spec":{"holderIdentity":"somebody-else"}}]}`
	case strings.HasSuffix(path, "/configmaps/kured-agent-pools"):
		return "get configmaps", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"kured-agent-pools"},` +
			`"data":{"default":"1"}}`
	case path == "/api/v1/nodes":
		return "list nodes", fmt.Sprintf(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",`+
			`"metadata":{"remainingItemCount":%d},"items":[{}]}`, waiting-1)
	case strings.HasPrefix(path, "/api/v1/nodes/"):
		return strings.ToLower(r.Method) + " nodes", c.node(strings.TrimPrefix(path, "/api/v1/nodes/"), r.Method)
	default:
		return strings.ToLower(r.Method) + " " + path, "{}"
	}
}

func (c *canned) node(name, method string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tainted[name] = c.tainted[name] || method == http.MethodPatch
	spec := "{}"
	if c.tainted[name] {
		spec = `{"taints":[{"key":"kured-agent/reboot-required","effect":"PreferNoSchedule"}]}`
	}
	return fmt.Sprintf(`{"kind":"Node","apiVersion":"v1","metadata":{"name":%q,"uid":"uid-%s","resourceVersion":"1"},`+
		`"spec":%s,"status":{"conditions":[{"type":"Ready","status":"True"}],`+
		`"nodeInfo":{"bootID":"00000001-0000-4000-8000-000000000000"}}}`, name, name, spec)
}
