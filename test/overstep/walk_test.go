// SPDX-License-Identifier: Apache-2.0
//go:build integration

package overstep

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// question is a SelfSubjectAccessReview.
type question struct {
	Namespace   string `json:"namespace,omitempty"`
	Verb        string `json:"verb"`
	Group       string `json:"group,omitempty"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Name        string `json:"name,omitempty"`
}

func (q question) String() string {
	what := q.Resource
	if q.Group != "" {
		what += "." + q.Group
	}
	if q.Subresource != "" {
		what += "/" + q.Subresource
	}
	if q.Name != "" {
		what += " " + q.Name
	}
	where := map[bool]string{true: "the cluster", false: q.Namespace}[q.Namespace == ""]
	return q.Verb + " " + what + " in " + where
}

// everybody is what the API server grants to whoever has a credential: to ask what they are and may. Accounts may also
// read which authorities the cluster publishes.
var everybody, everyAccount = []string{
	"create selfsubjectaccessreviews.authorization.k8s.io in the cluster",
	"create selfsubjectreviews.authentication.k8s.io in the cluster",
	"create selfsubjectrulesreviews.authorization.k8s.io in the cluster",
}, []string{
	"get clustertrustbundles.certificates.k8s.io in the cluster",
	"list clustertrustbundles.certificates.k8s.io in the cluster",
	"watch clustertrustbundles.certificates.k8s.io in the cluster",
}

// walk asks for every verb of every resource that the API server has, in namespaces that matter and in all at once, and
// compares what is allowed with the grants of the documentation. An older API server has fewer resources.
func (w *world) walk(t *testing.T, grants []grant) {
	questions := w.questions(t)
	isAsked := map[string]bool{}
	for _, q := range questions {
		isAsked[q.String()] = true
	}
	asked := map[string]bool{} // both tokens are one user to RBAC
	for _, p := range w.principals {
		kind := p.name
		if !p.stranger && strings.Contains(kind, "token") {
			kind = "token"
		} else if !p.stranger {
			kind = "certificate"
		}
		if asked[kind] {
			continue
		}
		asked[kind] = true
		want := slices.Clone(everybody)
		if !p.stranger {
			want = append(want, granted(grants)...)
		}
		if kind == "token" {
			want = append(want, everyAccount...)
		}
		want = slices.DeleteFunc(want, func(s string) bool { return !isAsked[s] })
		slices.Sort(want)
		if diff := cmp.Diff(want, p.allowed(t, questions)); diff != "" {
			t.Errorf("%s, of %d questions (-documented +allowed):\n%s", p.name, len(questions), diff)
		}
		for _, path := range []string{"/metrics", "/logs/", "/debug/pprof/profile", "/configz", "/flagz", "/statusz"} {
			if code, _, err := p.do(t.Context(), http.MethodGet, path, "", ""); err != nil || code != http.StatusForbidden {
				t.Errorf("%s gets %s: %d (%v)", p.name, path, code, err)
			}
		}
	}
	t.Logf("%d questions to each of %v", len(questions), slices.Sorted(maps.Keys(asked)))
}

// allowed returns the questions that are answered with yes.
func (p principal) allowed(t *testing.T, questions []question) []string {
	var mu sync.Mutex
	var yes []string
	var group sync.WaitGroup
	each := make(chan question)
	for range 8 {
		group.Go(func() {
			for q := range each {
				allowed, err := p.may(t, q)
				mu.Lock()
				if err != nil {
					t.Errorf("%s asks: %s: %v", p.name, q, err)
				}
				if allowed {
					yes = append(yes, q.String())
				}
				mu.Unlock()
			}
		})
	}
	for _, q := range questions {
		each <- q
	}
	close(each)
	group.Wait()
	slices.Sort(yes)
	return yes
}

func (p principal) may(t *testing.T, q question) (bool, error) {
	body, err := json.Marshal(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": q}})
	if err != nil {
		return false, err
	}
	code, answer, err := p.do(t.Context(), http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		"application/json", string(body))
	if err != nil || code != http.StatusCreated {
		return false, fmt.Errorf("%d %s: %w", code, answer, err)
	}
	var review struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	err = json.Unmarshal([]byte(answer), &review)
	return review.Status.Allowed, err
}

var namespaces = []string{"", "default", "kube-node-lease", "kube-system", "kured-agent"}

// resource is what discovery tells of one, or a name that only RBAC knows.
type resource struct {
	question
	namespaced bool
}

// Verbs of the protocol, and those that RBAC alone knows.
var (
	verbs       = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	beyondVerbs = []string{"*", "impersonate", "bind", "escalate", "approve", "sign", "attest", "use", "proxy"}
)

// questions are all verbs of all resources.
func (w *world) questions(t *testing.T) []question {
	resources := []resource{{question: question{Resource: "*", Group: "*"}}}
	for _, path := range w.groupVersions(t) {
		resources = append(resources, w.resources(t, path)...)
	}
	// Resources that are in no discovery: whom one may act as, and whose certificates one may approve.
	for _, name := range []string{"users", "groups", "uids", "userextras", "signers"} {
		for _, group := range []string{"", "authentication.k8s.io", "certificates.k8s.io"} {
			resources = append(resources, resource{question: question{Resource: name, Group: group}})
		}
	}
	var all []question
	for _, r := range resources {
		places := namespaces
		if !r.namespaced {
			places = places[:1]
		}
		for _, place := range places {
			all = r.ask(all, place, "", verbs)
		}
		all = r.ask(all, "", "", beyondVerbs)
		if name := names[r.Resource]; name != "" {
			all = r.ask(all, "default", name, verbs)
			all = r.ask(all, "kured-agent", name, verbs)
		}
	}
	return all
}

// names are the objects that a rule names, by their resource.
var names = map[string]string{"configmaps": "kured-agent-pools", "serviceaccounts": "agent"}

func (r resource) ask(all []question, namespace, name string, verbs []string) []question {
	for _, verb := range verbs {
		q := r.question
		q.Namespace, q.Name, q.Verb = namespace, name, verb
		all = append(all, q)
	}
	return all
}

func (w *world) groupVersions(t *testing.T) []string {
	var groups struct {
		Groups []struct {
			Versions []struct{ GroupVersion string }
		}
	}
	if err := w.Do(t.Context(), http.MethodGet, "/apis", nil, &groups); err != nil {
		t.Fatal(err)
	}
	paths := []string{"/api/v1"}
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			paths = append(paths, "/apis/"+version.GroupVersion)
		}
	}
	return paths
}

func (w *world) resources(t *testing.T, path string) []resource {
	var list struct {
		GroupVersion string
		Resources    []struct {
			Name       string
			Namespaced bool
		}
	}
	if err := w.Do(t.Context(), http.MethodGet, path, nil, &list); err != nil {
		t.Fatal(err)
	}
	group, _, ok := strings.Cut(list.GroupVersion, "/")
	if !ok {
		group = ""
	}
	var all []resource
	for _, r := range list.Resources {
		name, subresource, _ := strings.Cut(r.Name, "/")
		all = append(all, resource{question{Group: group, Resource: name, Subresource: subresource}, r.Namespaced})
	}
	return all
}

// granted writes the grants of the documentation as the questions that they answer.
func granted(grants []grant) []string {
	var all []string
	for _, g := range grants {
		where := []string{"the cluster"}
		switch g.where {
		case ownNamespace:
			where = []string{"kured-agent"}
		case inDefault:
			where = []string{"default"}
		case everywhere:
			where = append(where, namespaces[1:]...)
		}
		for verb := range strings.SplitSeq(g.verbs, ", ") {
			for _, place := range where {
				all = append(all, verb+" "+g.resource+" in "+place)
			}
		}
	}
	return all
}
