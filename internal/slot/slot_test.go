// SPDX-License-Identifier: Apache-2.0

package slot

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// leaseServer keeps leases by name, as etcd does.
type leaseServer struct {
	mu      sync.Mutex
	pools   map[string]string // nil: no ConfigMap
	leases  map[string]*coordinationv1.Lease
	next    int
	created int
	lists   []string // query of each list
	looks   int      // reads of the ConfigMap
	nodes   string   // answer to a list of nodes
	asked   []string // query of each list of nodes

	stale  bool             // a list from the cache shows nothing
	create http.HandlerFunc // answers creations instead; the lease is made before it when makes is set
	makes  bool
	delete http.HandlerFunc
}

func newLeaseServer(pools map[string]string, leases ...*coordinationv1.Lease) *leaseServer {
	s := &leaseServer{pools: pools, leases: map[string]*coordinationv1.Lease{}}
	for _, lease := range leases {
		s.leases[lease.Name] = lease
	}
	return s
}

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/kured-agent/leases"

func (s *leaseServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := strings.TrimPrefix(r.URL.Path, leasePath+"/")
	switch {
	case r.URL.Path == "/api/v1/namespaces/kured-agent/configmaps/kured-agent-pools":
		s.looks++
		if s.pools == nil {
			kubetest.Status(w, 404, "NotFound", "not found", nil)
			return
		}
		kubetest.JSON(w, 200, map[string]any{"kind": "ConfigMap", "apiVersion": "v1", "data": s.pools})
	case r.URL.Path == "/api/v1/nodes":
		s.asked = append(s.asked, r.URL.RawQuery+" "+r.Header.Get("Accept"))
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(s.nodes))
	case r.URL.Path == leasePath && r.Method == http.MethodGet:
		s.lists = append(s.lists, r.URL.RawQuery)
		var items []coordinationv1.Lease
		for _, lease := range s.leases {
			if !s.stale || r.URL.Query().Get("resourceVersion") != "0" {
				items = append(items, *lease)
			}
		}
		kubetest.JSON(w, 200, map[string]any{"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "items": items})
	case r.URL.Path == leasePath:
		s.created++
		var lease coordinationv1.Lease
		if err := json.NewDecoder(r.Body).Decode(&lease); err != nil {
			kubetest.Status(w, 400, "BadRequest", err.Error(), nil)
			return
		}
		if s.create != nil && !s.makes {
			s.create(w, r)
			return
		}
		if s.leases[lease.Name] != nil {
			kubetest.Status(w, 409, "AlreadyExists", "already exists", nil)
			return
		}
		s.next++
		lease.UID = typesUID(s.next)
		s.leases[lease.Name] = &lease
		if s.create != nil {
			s.create(w, r)
			return
		}
		kubetest.JSON(w, 201, lease)
	case s.leases[name] == nil:
		kubetest.Status(w, 404, "NotFound", "not found", nil)
	case r.Method == http.MethodDelete:
		if s.delete != nil {
			s.delete(w, r)
			return
		}
		var options metav1.DeleteOptions
		_ = json.NewDecoder(r.Body).Decode(&options)
		if options.Preconditions == nil || *options.Preconditions.UID != s.leases[name].UID {
			kubetest.Status(w, 409, "Conflict", "Precondition failed: UID", nil)
			return
		}
		delete(s.leases, name)
		kubetest.JSON(w, 200, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	default:
		kubetest.JSON(w, 200, s.leases[name])
	}
}

func client(t *testing.T, s http.Handler) *Client {
	t.Helper()
	k, _ := kubetest.Server(t, s)
	return New(k.Core(), k.Coordination(), Options{Namespace: "kured-agent", Node: "n1"})
}

var request = Request{Pool: "default", NodeUID: "node-uid", Boot: "b1"}

func acquire(t *testing.T, c *Client) Result {
	t.Helper()
	result, err := c.Acquire(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestASlotIsTakenVerifiedAndGivenBack(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "2"})
	c := client(t, s)
	got := acquire(t, c)
	if !got.Taken || !strings.HasPrefix(got.Name, "slot-default-") || got.UID == "" || got.Boot != "b1" ||
		got.Since.IsZero() {
		t.Fatalf("got %+v", got)
	}
	lease := s.leases[got.Name]
	if holder(lease) != "n1" || lease.Labels[poolLabel] != "default" || lease.Annotations[phaseAnnotation] != "acquired" ||
		ownerUID(lease) != "node-uid" || *lease.Spec.LeaseDurationSeconds != 3600 {
		t.Errorf("lease %+v", lease)
	}
	if ours, why, err := c.Verify(t.Context(), got.Name, got.UID); !ours || err != nil {
		t.Errorf("%v, %q, %v", ours, why, err)
	}
	if again := acquire(t, c); again != got || s.created != 1 {
		t.Errorf("again: %+v after %d creations", again, s.created)
	}
	if found, err := c.Find(t.Context(), "default"); err != nil || found != got {
		t.Errorf("found %+v, %v", found, err)
	}
	for range 2 { // the second finds nothing to do
		if err := c.Release(t.Context(), got.Name, got.UID); err != nil {
			t.Error(err)
		}
	}
	if len(s.leases) != 0 {
		t.Errorf("left %v", s.leases)
	}
	if found, err := c.Find(t.Context(), ""); err != nil || found.Taken {
		t.Errorf("found %+v, %v", found, err)
	}
}

func TestOnlyTheFirstListComesFromTheQuorum(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "1"}, testLease("slot-default-0", "n2", "b9"))
	c := client(t, s)
	acquire(t, c)
	acquire(t, c)
	if len(s.lists) != 2 || strings.Contains(s.lists[0], "resourceVersion") ||
		!strings.Contains(s.lists[1], "resourceVersion=0") ||
		!strings.Contains(s.lists[1], "labelSelector=kured-agent%2Fpool%3Ddefault") {
		t.Errorf("lists %q", s.lists)
	}
}

func TestAfterALostAnswerTheNameDecides(t *testing.T) {
	abort := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	timeout := func(w http.ResponseWriter, _ *http.Request) { kubetest.Status(w, 504, "Timeout", "timeout", nil) }
	for name, answer := range map[string]http.HandlerFunc{"connection breaks": abort, "gateway timeout": timeout} {
		for _, makes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, made=%v", name, makes), func(t *testing.T) {
				s := newLeaseServer(map[string]string{"default": "3"})
				c := client(t, s)
				s.create, s.makes = answer, makes
				got, err := c.Acquire(t.Context(), request)
				if got.Taken != makes || (err == nil) != makes {
					t.Fatalf("got %+v, %v", got, err)
				}
				// Whatever the cache shows, there is never a second slot.
				s.create, s.stale = nil, true
				second := acquire(t, c)
				if !second.Taken || len(s.leases) != 1 || makes && second != got {
					t.Errorf("then %+v, %d leases", second, len(s.leases))
				}
			})
		}
	}
}

func TestARefusalOfThePolicyIsAnErrorWithItsMessage(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "1"})
	s.create = func(w http.ResponseWriter, _ *http.Request) {
		kubetest.Status(w, 403, "Forbidden", "the node holds slot-x-0 already", nil)
	}
	_, err := client(t, s).Acquire(t.Context(), request)
	if err == nil || !strings.Contains(err.Error(), "the node holds slot-x-0 already") {
		t.Errorf("got %v", err)
	}
}

func TestALoserTriesOneMoreName(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "9"})
	c := client(t, s)
	acquire(t, c) // settles the list
	for name := range s.leases {
		delete(s.leases, name)
	}
	for i := range 9 {
		s.leases[slotName("default", i)] = testLease(slotName("default", i), "n2", "b")
	}
	s.stale, s.created = true, 0
	if got := acquire(t, c); got.Taken || !strings.Contains(got.Why, "another node was faster") || s.created != 2 {
		t.Errorf("got %+v after %d creations", got, s.created)
	}
}

func TestAVerifiedSlotIsExactlyOurs(t *testing.T) {
	ours := testLease("slot-default-0", "n1", "b1")
	for _, c := range []struct {
		name  string
		lease *coordinationv1.Lease
		uid   string
		why   string
	}{
		{"gone", nil, "uid", "somebody released it"},
		{"another holder", testLease("slot-default-0", "n2", "b1"), "uid-slot-default-0", "no longer ours"},
		{"another lease", ours, "older", "released and taken again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newLeaseServer(nil)
			if c.lease != nil {
				s.leases[c.lease.Name] = c.lease
			}
			ok, why, err := client(t, s).Verify(t.Context(), "slot-default-0", c.uid)
			if ok || err != nil || !strings.Contains(why, c.why) {
				t.Errorf("%v, %q, %v", ok, why, err)
			}
		})
	}
	t.Run("no answer", func(t *testing.T) {
		c := client(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }))
		if ok, _, err := c.Verify(t.Context(), "slot-default-0", "u"); ok || err == nil {
			t.Errorf("%v, %v", ok, err)
		}
	})
}

func TestReleasingASlotThatIsNoLongerOursSucceeds(t *testing.T) {
	forbidden := func(w http.ResponseWriter, _ *http.Request) {
		kubetest.Status(w, 403, "Forbidden", "a slot may be changed or deleted only by its holder", nil)
	}
	for _, c := range []struct {
		name, holder string
		delete       http.HandlerFunc
		fails        bool
	}{
		{name: "taken again", holder: "n1"}, // another UID: 409
		{name: "another's, the policy refuses", holder: "n2", delete: forbidden},
		{name: "still ours, the policy refuses", holder: "n1", delete: forbidden, fails: true},
		{name: "no answer", holder: "n1", fails: true,
			delete: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newLeaseServer(nil, testLease("slot-default-0", c.holder, "b"))
			s.delete = c.delete
			if err := client(t, s).Release(t.Context(), "slot-default-0", "older"); (err != nil) != c.fails {
				t.Errorf("got %v", err)
			}
			if len(s.leases) != 1 {
				t.Error("deleted a lease that is not ours")
			}
		})
	}
	if err := client(t, newLeaseServer(nil)).Release(t.Context(), "other-lease", "u"); err == nil {
		t.Error("released what is no slot")
	}
}

func TestAnUnreadableListIsAnError(t *testing.T) {
	for _, body := range []string{`{"kind":"LeaseList"`, `[]`, ``, `<html>`} {
		c := client(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { kubetest.JSON(w, 200, body) }))
		if got, err := c.Acquire(t.Context(), request); err == nil {
			t.Errorf("%q: %+v", body, got)
		}
	}
}

// Five thousand nodes may look at a full pool: each look is one list from the cache.
func TestALookAtAFullPoolIsOneRequestAndAGrownPoolIsSeen(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "1"}, testLease("slot-default-0", "n2", "b2"))
	c := client(t, s)
	request := Request{Pool: "default", NodeUID: "u1", Boot: "b1"}
	for range 1 + sizeLooks {
		got, err := c.Acquire(t.Context(), request)
		if err != nil || got.Taken || !strings.Contains(got.Why, "n2") {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	if s.looks != 1 || len(s.lists) != 1+sizeLooks {
		t.Errorf("%d reads of the ConfigMap for %d lists", s.looks, len(s.lists))
	}
	s.pools["default"] = "2"
	got, err := c.Acquire(t.Context(), request)
	if err != nil || !got.Taken {
		t.Errorf("after the pool grew: %+v, %v", got, err)
	}
}

func TestAPauseIsSeenBeforeEveryCreation(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "1"}, testLease("slot-default-0", "n2", "b2"))
	c := client(t, s)
	request := Request{Pool: "default", NodeUID: "u1", Boot: "b1"}
	if got, err := c.Acquire(t.Context(), request); err != nil || got.Taken {
		t.Fatalf("got %+v, %v", got, err)
	}
	s.pools["paused"] = "the auditors are here"
	delete(s.leases, "slot-default-0")
	got, err := c.Acquire(t.Context(), request)
	if err != nil || got.Taken || !strings.Contains(got.Why, "the auditors are here") {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestALookTakesNothing(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "1"})
	c := client(t, s)
	got, err := c.Acquire(t.Context(), Request{Pool: "default", NodeUID: "u1", Boot: "b1", Look: true})
	if err != nil || got.Taken || !got.Free || s.created != 0 {
		t.Errorf("got %+v, %v, %d created", got, err, s.created)
	}
}

func TestNodesAreCountedWithoutReadingThem(t *testing.T) {
	s := newLeaseServer(nil)
	s.nodes = `{"metadata":{"remainingItemCount":4999},"items":[{}]}`
	c := client(t, s)
	if n, err := c.Nodes(t.Context(), "default"); err != nil || n != 5000 {
		t.Errorf("got %d, %v", n, err)
	}
	s.nodes = `{"metadata":{},"items":[{},{},{}]}`
	if n, err := c.Nodes(t.Context(), "control-plane"); err != nil || n != 3 {
		t.Errorf("got %d, %v", n, err)
	}
	if !strings.Contains(s.asked[0], "limit=1&") || !strings.Contains(s.asked[0], "PartialObjectMetadataList") ||
		!strings.Contains(s.asked[1], "node-role.kubernetes.io%2Fcontrol-plane") {
		t.Errorf("asked %q", s.asked)
	}
	// A pool of its own with a selector is counted alone, as far as its size matters.
	c.nodes = "pool=gpu"
	if n, err := c.Nodes(t.Context(), "gpu"); err != nil || n != 3 || !strings.Contains(s.asked[2], "labelSelector=pool%3Dgpu") {
		t.Errorf("got %d, %v, asked %q", n, err, s.asked)
	}
	s.nodes = `{"metadata":{"remainingItemCount":-7}`
	if n, err := c.Nodes(t.Context(), "default"); err == nil {
		t.Errorf("a broken answer gave %d", n)
	}
}
