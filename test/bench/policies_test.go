// SPDX-License-Identifier: Apache-2.0

//go:build bench

package bench

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// What is asked of the API server with and without a policy, in turns, so that a machine that gets busier meanwhile
// slows down both.
const (
	turns       = 4
	each        = 250 // requests a turn
	crowd       = 200 // pods in the namespace of an eviction
	policedNode = "bench-policies"
)

// policies measures what the admission policies add to a request: to those of agents, which they judge, and to those of
// everybody else, which they let pass at the first condition.
func policies(t *testing.T, _ *cluster.Cluster, figures *table) {
	c := cluster.Start(t, cluster.Options{})
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, policedNode)
	if err := c.Do(t.Context(), http.MethodPost, "/api/v1/nodes", []byte(body), nil); err != nil {
		t.Fatal(err)
	}
	for i := range crowd {
		c.Pod(policedNode, fmt.Sprintf("crowd-%d", i), cluster.PodOptions{})
	}
	c.Pod("another", "elsewhere", cluster.PodOptions{})
	agent := client(t, c)
	node := policy{t: t, c: c, file: "policy-node.yaml", probe: func() error {
		return send(t, agent, http.MethodPatch, c.URL()+"/api/v1/nodes/"+policedNode+"?dryRun=All",
			`{"spec":{"podCIDR":"10.9.0.0/24"}}`)
	}}
	eviction := policy{t: t, c: c, file: "optional/policy-eviction.yaml", probe: func() error {
		return evict(t, c, agent, "elsewhere")
	}}
	admin, err := rest.HTTPClientFor(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	patch := func(who *http.Client, path string) func(int) error {
		return func(i int) error {
			return send(t, who, http.MethodPatch, c.URL()+"/api/v1/nodes/"+policedNode+path,
				fmt.Sprintf(`{"metadata":{"annotations":{"kured-agent/reasons":"%d"}}}`, i))
		}
	}
	node.figure(figures, "policy on a Node patch of an agent", time.Millisecond, each, patch(agent, ""))
	node.figure(figures, "policy on a Node patch of another", time.Millisecond, each, patch(admin, ""))
	node.figure(figures, "policy on a status patch of a kubelet", time.Millisecond, each, patch(admin, "/status"))
	node.apply()
	one := func(who *http.Client) func(int) error { return func(int) error { return evict(t, c, who, "crowd-0") } }
	among := fmt.Sprintf(", %d pods", crowd)
	eviction.figure(figures, "optional policy, eviction by an agent"+among, 40*time.Millisecond, each/5, one(agent))
	eviction.figure(figures, "optional policy, eviction by another"+among, 15*time.Millisecond, each/5, one(admin))
}

func client(t *testing.T, c *cluster.Cluster) *http.Client {
	config := rest.AnonymousClientConfig(c.AdminConfig())
	config.BearerToken = c.AgentToken(policedNode, time.Hour)
	agent, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return agent
}

func evict(t *testing.T, c *cluster.Cluster, who *http.Client, pod string) error {
	return send(t, who, http.MethodPost, c.URL()+"/api/v1/namespaces/default/pods/"+pod+"/eviction?dryRun=All",
		fmt.Sprintf(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":"default"}}`, pod))
}

func send(t *testing.T, who *http.Client, method, url, body string) error {
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	kind := map[bool]string{true: cluster.MergePatch, false: "application/json"}[method == http.MethodPatch]
	request.Header.Set("Content-Type", kind)
	response, err := who.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer strings.Builder
	if err := response.Write(&answer); err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return errors.New(answer.String())
	}
	return nil
}

// policy is one manifest that is applied and taken away again.
type policy struct {
	t     *testing.T
	c     *cluster.Cluster
	file  string
	probe func() error // what the policy refuses, and what nothing but it does
}

func (p policy) path() string {
	root, err := cluster.ModuleRoot()
	if err != nil {
		p.t.Fatal(err)
	}
	return filepath.Join(root, "packaging", "kubernetes", p.file)
}

func (p policy) apply() {
	p.c.MustKubectl("apply", "-f", p.path())
	p.c.Eventually(p.file+" is enforced", 20*time.Second, p.enforced)
}

func (p policy) remove() {
	p.c.MustKubectl("delete", "--ignore-not-found", "-f", p.path())
	p.c.Eventually(p.file+" is gone", 20*time.Second, func() bool { return !p.enforced() })
}

func (p policy) enforced() bool {
	err := p.probe()
	return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

// figure adds the median of one request with the policy, and what the policy makes of that.
func (p policy) figure(figures *table, what string, most time.Duration, n int, request func(int) error) {
	var with, without []time.Duration
	for range turns {
		p.remove()
		without = append(without, p.measure(n, request)...)
		p.apply()
		with = append(with, p.measure(n, request)...)
	}
	a, b := median(with), median(without)
	figures.add(what, fmt.Sprintf("%s, without %s: %.2f times", milliseconds(a), milliseconds(b), float64(a)/float64(b)),
		fmt.Sprintf("at most %s more", most), "", a-b < most)
}

func (p policy) measure(n int, request func(int) error) []time.Duration {
	var took []time.Duration
	for i := range n {
		start := time.Now()
		if err := request(i); err != nil {
			p.t.Fatalf("%s: %v", p.file, err)
		}
		took = append(took, time.Since(start))
	}
	return took
}

func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }
