// SPDX-License-Identifier: Apache-2.0
//go:build integration

package overstep

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// behaved is the API server of test/controlplane with the versions that it can behave as. `make compat` gives an older
// one instead, in the environment: its program, and in the order of time the versions that it can behave as.
const behaved = "1.34 1.35 1.36 1.37"

func apiServer() (program string, versions []string) {
	return os.Getenv("KURED_AGENT_APISERVER"),
		strings.Fields(cmp.Or(os.Getenv("KURED_AGENT_APISERVER_VERSIONS"), behaved))
}

// tokensSince is the first version whose API server binds a token to a Node without an alpha feature.
const (
	tokensSince = "1.31"
	cannotBind  = "cannot bind token to a Node object"
)

// principal is somebody with a credential.
type principal struct {
	name, host string
	client     *http.Client
	bound      bool // it names the Node mine
	stranger   bool
}

func TestEveryOverstepIsRefusedInWordsOnEachVersion(t *testing.T) {
	program, versions := apiServer()
	for i, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, program, version, i == len(versions)-1)
			for _, p := range w.principals {
				w.mayDoItsWork(t, p)
			}
			for _, s := range sections {
				w.try(t, s)
			}
			w.queues(t)
			if i == 0 || i == len(versions)-1 {
				w.walk(t, grants)
			}
			if i == len(versions)-1 {
				w.walk(t, w.withoutPods(t))
			}
		})
	}
}

type world struct {
	*Stage
	version    string
	principals []principal
}

// newWorld runs an API server, as itself or as an earlier version.
func newWorld(t *testing.T, program, version string, itself bool) *world {
	o := cluster.Options{APIServer: program}
	if !itself {
		o.APIServerArgs = []string{"--emulated-version=" + version}
		if program == "" { // older ones do not know what that is
			o.APIServerArgs = append(o.APIServerArgs, "--min-compatibility-version="+version)
		}
	}
	c := cluster.Start(t, o)
	for _, node := range []string{Mine, Yours} {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q}}`, node)
		if err := c.Do(t.Context(), http.MethodPost, "/api/v1/nodes", []byte(body), nil); err != nil {
			t.Fatal(err)
		}
	}
	// The API server starts every Node with a taint that a controller would take off.
	for _, node := range []string{Mine, Yours} {
		c.MustKubectl("taint", "node", node, "node.kubernetes.io/not-ready-")
	}
	stage, err := NewStage(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Stage: stage, version: version}

	certificate := func(name, user string, groups ...string) principal {
		return w.principal(t, name, w.config(t, w.Kubeconfig(user, groups...)))
	}
	unbound := w.principal(t, "unbound token of the account",
		w.bearer(strings.TrimSpace(w.MustKubectl("-n", "kured-agent", "create", "token", "agent"))))
	named := certificate("certificate", "kured-agent:"+Mine, "kured-agent:nodes")
	nameless := certificate("certificate of the group for no Node", "worker-1", "kured-agent:nodes")
	stranger := certificate("stranger", "mallory", "staff")
	named.bound, stranger.stranger = true, true
	w.principals = []principal{unbound, named, nameless, stranger}
	if w.since(tokensSince) {
		token := w.principal(t, "token", w.bearer(w.AgentToken(Mine, time.Hour)))
		token.bound = true
		w.principals = append(w.principals, token)
	}
	return w
}

func (w *world) since(version string) bool { return w.version >= version } // all of them are 1.3x

func (w *world) config(t *testing.T, kubeconfig string) *rest.Config {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func (w *world) principal(t *testing.T, name string, config *rest.Config) principal {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client.Timeout = requestBound
	return principal{name: name, host: w.URL(), client: client}
}

func (p principal) do(ctx context.Context, method, path, kind, body string) (code int, answer string, err error) {
	return send(ctx, p.client, method, p.host+path, kind, body)
}

// try makes every attempt of a section with every credential. Where the section needs an optional manifest, it shows
// first that the attempts are allowed without.
func (w *world) try(t *testing.T, s section) {
	if s.optional != "" {
		for _, a := range s.attempts {
			for _, p := range w.principals {
				if code, answer, err := w.send(t.Context(), p.client, a, true); !p.stranger && (err != nil || code/100 != 2) {
					t.Errorf("%s, %s, without %s: %d %s (%v)", p.name, a.what, s.optional, code, answer, err)
				}
			}
		}
		w.apply(t.Context(), s, w.principals[0].client, namesNoNode)
	}
	for _, a := range s.attempts {
		w.admin(a.given)
		for _, p := range w.principals {
			w.mustRefuse(t, p, a)
		}
		w.admin(a.after)
	}
}

// withoutPods applies the optional manifest for [drain] identity = "kubelet" and returns what it leaves.
func (w *world) withoutPods(t *testing.T) []grant {
	w.MustKubectl("apply", "-f", manifest("optional/identity-kubelet.yaml"))
	named := slices.IndexFunc(w.principals, func(p principal) bool { return p.bound })
	w.Eventually("the agents have no right to pods", 20*time.Second, func() bool {
		allowed, err := w.principals[named].may(t, question{Verb: "list", Resource: "pods"})
		return err == nil && !allowed
	})
	return slices.DeleteFunc(slices.Clone(grants), func(g grant) bool { return g.where == everywhere })
}

// mustRefuse makes one attempt for real, unless it is said to be accepted.
func (w *world) mustRefuse(t *testing.T, p principal, a attempt) {
	want := w.answer(p, a)
	if strings.HasPrefix(want, "accepted") {
		if code, answer, err := w.send(t.Context(), p.client, a, true); err != nil || code/100 != 2 {
			t.Errorf("%s, %s: %d %s (%v), said to be accepted", p.name, a.what, code, answer, err)
		}
		return
	}
	if err := w.refused(t.Context(), p.client, a, want); err != nil {
		t.Errorf("%s, %v", p.name, err)
	}
}

// answer is what has to be in the refusal of the attempt.
func (w *world) answer(p principal, a attempt) string {
	switch {
	case p.stranger, a.because == "":
		return a.noRight()
	case !p.bound && !strings.HasSuffix(a.because, "is forbidden"):
		return namesNoNode
	case p.bound && a.certificate != "" && p.name == "certificate":
		if a.resource == "serviceaccounts/token" && !w.since(tokensSince) {
			return cannotBind
		}
		return a.certificate
	}
	return a.because
}

// mayDoItsWork shows with both credentials of an agent that what is refused later is not refused for another reason.
func (w *world) mayDoItsWork(t *testing.T, p principal) {
	if !p.bound {
		return
	}
	const clean = `{"metadata":{"annotations":{"kured-agent/cordoned":null}},"spec":{"unschedulable":null,"taints":null}}`
	take := takeSlot("", slot, Mine, ownedByMine, "")
	renew := token("", "agent", boundTo("Node", Mine, uidOfMine), "")
	evict := evictionAttempts[0]
	for _, a := range []attempt{
		patchNode("taint", Mine, ourTaint, ""), patchNode("cordon", Mine, ourCordon, ""),
		patchNode("return", Mine, clean, ""),
		take, {method: "GET", path: leases + "/" + slot}, {method: "GET", path: leases},
		{method: "DELETE", path: leases + "/" + slot},
		{method: "GET", path: "/api/v1/nodes"}, {method: "GET", path: "/api/v1/pods?fieldSelector=spec.nodeName%3D" + Mine},
		{method: "POST", path: strings.Replace(evict.path, "theirs", "ours", 1) + "?dryRun=All",
			body: strings.Replace(evict.body, "theirs", "ours", 1)},
	} {
		if code, answer, err := w.send(t.Context(), p.client, a, false); err != nil || code/100 != 2 {
			t.Errorf("%s, its own work %s %s: %d %s (%v)", p.name, a.method, a.path, code, answer, err)
		}
	}
	code, answer, err := w.send(t.Context(), p.client, renew, false)
	if !w.since(tokensSince) {
		if !strings.Contains(answer, cannotBind) {
			t.Errorf("%s on %s: a bound token: %d %s", p.name, w.version, code, answer)
		}
	} else if err != nil || code/100 != 2 {
		t.Errorf("%s, renewal: %d %s (%v)", p.name, code, answer, err)
	}
}
