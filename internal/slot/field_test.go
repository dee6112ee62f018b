// SPDX-License-Identifier: Apache-2.0

package slot

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// readOnly counts what is written, and answers leases with a code if one is set.
type readOnly struct {
	*leaseServer
	writes atomic.Int32
	leases int
}

func (s *readOnly) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		s.writes.Add(1)
	}
	if s.leases != 0 && strings.HasPrefix(r.URL.Path, leasePath) {
		kubetest.Status(w, s.leases, http.StatusText(s.leases), "no answer", nil)
		return
	}
	s.leaseServer.ServeHTTP(w, r)
}

// kubereboot/kured#143, #478, #822: a lock that was old, or that a reader did not understand, was taken for free, and
// thirty nodes rebooted at once. Clocks of other hosts say nothing, and a Lease exists or does not.
func TestNeitherAgeNorClockNorFormatTakesASlotFromItsHolder(t *testing.T) {
	at := func(d time.Duration) *metav1.MicroTime {
		return &metav1.MicroTime{Time: time.Now().Add(d)}
	}
	second := int32(1)
	for name, change := range map[string]func(*coordinationv1.Lease){
		"taken two years ago": func(l *coordinationv1.Lease) {
			l.Spec.AcquireTime, l.Spec.RenewTime = at(-17520*time.Hour), at(-17520*time.Hour)
		},
		"expired for a year": func(l *coordinationv1.Lease) {
			l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = at(-8760*time.Hour), &second
		},
		"a clock two hours behind": func(l *coordinationv1.Lease) { l.Spec.AcquireTime = at(-2 * time.Hour) },
		"a clock two hours ahead":  func(l *coordinationv1.Lease) { l.Spec.AcquireTime = at(2 * time.Hour) },
		"no times at all":          func(l *coordinationv1.Lease) { l.Spec.AcquireTime, l.Spec.RenewTime = nil, nil },
		"no holder":                func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil },
		"nothing that is known": func(l *coordinationv1.Lease) {
			l.Spec, l.Annotations, l.OwnerReferences = coordinationv1.LeaseSpec{}, nil, nil
		},
		"a human wrote it":          func(l *coordinationv1.Lease) { by := "alice"; l.Spec.HolderIdentity, l.OwnerReferences = &by, nil },
		"its Node is being deleted": func(l *coordinationv1.Lease) { l.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
	} {
		t.Run(name, func(t *testing.T) {
			lease := testLease("slot-default-0", "n2", "b2")
			change(lease)
			s := &readOnly{leaseServer: newLeaseServer(map[string]string{"default": "1"}, lease)}
			c := client(t, s)
			for range 3 {
				if got := acquire(t, c); got.Taken || got.Free || !strings.Contains(got.Why, "slot-default-0 by "+who(lease)) {
					t.Errorf("got %+v", got)
				}
			}
			if n := s.writes.Load(); n > 0 {
				t.Errorf("%d writes", n)
			}
		})
	}
}

func who(lease *coordinationv1.Lease) string {
	if h := holder(lease); h != "" {
		return h
	}
	return "an unknown holder"
}

func TestAnErrorOfTheAPIServerIsNoReasonToTakeASlot(t *testing.T) {
	for _, code := range []int{401, 403, 404, 429, 500, 503} {
		s := &readOnly{leaseServer: newLeaseServer(map[string]string{"default": "1"}), leases: code}
		if got, err := client(t, s).Acquire(t.Context(), request); err == nil || got.Taken || s.writes.Load() > 0 {
			t.Errorf("%d: %+v, %v, %d writes", code, got, err, s.writes.Load())
		}
	}
}

// kubereboot/kured#143: everybody who saw the expired lock believed to have it.
func TestOfThirtyAgentsAtOneFreedSlotExactlyOneWins(t *testing.T) {
	const agents, rounds = 30, 30
	s := newLeaseServer(map[string]string{"default": "1"}, testLease("slot-default-0", "gone", "b"))
	k, _ := kubetest.Server(t, s)
	var clients []*Client
	for i := range agents {
		c := New(k.Core(), k.Coordination(), Options{Namespace: "kured-agent", Node: fmt.Sprintf("n%d", i)})
		if got, err := c.Acquire(t.Context(), request); err != nil || got.Taken {
			t.Fatalf("taken while another holds it: %+v, %v", got, err)
		}
		clients = append(clients, c)
	}
	for round := range rounds {
		s.mu.Lock()
		clear(s.leases) // a human or the garbage collector frees it
		s.mu.Unlock()
		var won, verified atomic.Int32
		var all sync.WaitGroup
		barrier := make(chan struct{})
		for _, c := range clients {
			all.Go(func() {
				<-barrier
				got, err := c.Acquire(t.Context(), request)
				switch {
				case err != nil:
					t.Error(err)
				case got.Taken:
					won.Add(1)
					if ours, why, err := c.Verify(t.Context(), got.Name, got.UID); ours {
						verified.Add(1)
					} else {
						t.Errorf("the winner does not have it: %s, %v", why, err)
					}
				}
			})
		}
		close(barrier)
		all.Wait()
		if won.Load() != 1 || verified.Load() != 1 {
			t.Fatalf("round %d: %d agents won, %d verified it", round, won.Load(), verified.Load())
		}
	}
}

// kubereboot/kured#103: humans took the lock to keep others from rebooting, and broke who held it.
func TestAPauseAndAHandmadeSlotHoldOthersBackAndBreakNoHolder(t *testing.T) {
	s := newLeaseServer(map[string]string{"default": "2"})
	k, _ := kubetest.Server(t, s)
	mine := New(k.Core(), k.Coordination(), Options{Namespace: "kured-agent", Node: "n1"})
	other := New(k.Core(), k.Coordination(), Options{Namespace: "kured-agent", Node: "n2"})
	got := acquire(t, mine)
	set := func(change func()) { s.mu.Lock(); defer s.mu.Unlock(); change() }
	refused := func(why string) {
		t.Helper()
		if other := acquire(t, other); other.Taken || !strings.Contains(other.Why, why) {
			t.Errorf("the other: %+v, want %q", other, why)
		}
		if again := acquire(t, mine); again != got {
			t.Errorf("the holder: %+v, had %+v", again, got)
		}
		if ours, why, err := mine.Verify(t.Context(), got.Name, got.UID); !ours {
			t.Errorf("the holder lost it: %s, %v", why, err)
		}
	}
	set(func() { s.pools["paused"] = "manual: incident 4711" })
	refused("paused: manual: incident 4711")
	set(func() { delete(s.pools, "paused") })
	free := "slot-default-0"
	if got.Name == free {
		free = "slot-default-1"
	}
	set(func() { s.leases[free] = testLease(free, "manual", "") })
	refused(free + " by manual")
	if err := mine.Release(t.Context(), got.Name, got.UID); err != nil || len(s.leases) != 1 {
		t.Errorf("%v, left %v", err, s.leases)
	}
}
