// SPDX-License-Identifier: Apache-2.0

package slot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The protocol of this package without its network: choose() on a list that may be old, a creation that a server admits
// once a name, and requests that are lost, late, or lose their answer, while agents crash and N changes. One step is
// one move of one agent, of the network or of an admin, picked by a seeded generator: a schedule.

const simPool = "default"

// simServer is what the API server does: names are unique, the admission policy knows N and who holds what a moment late.
type simServer struct {
	rng    *rand.Rand
	leases []coordinationv1.Lease // never changed in place: old lists stay what they were
	old    [4][]coordinationv1.Lease
	n      int
	seen   int // N as the admission policy sees it
	paused bool
	shrank bool
	uids   int
	late   []simRequest
	// admitted is N as it was seen when the lease of this UID was let in.
	admitted map[types.UID]int
	doubles  int // leases taken by a node that had one already
}

type simRequest struct{ name, node string }

type simState int

const (
	simIdle     simState = iota
	simCreating          // has chosen names
	simHolding           // believes to have a slot
	simDown              // verified it and took the node down
	simReturned          // is up again and gives the slot back
	simCrashed           // its process knows nothing any more; the node may be down
)

type simAgent struct {
	name    string
	state   simState
	settled bool
	names   []string
	lease   string
	uid     types.UID
	down    bool
}

func (s *simServer) changed(leases []coordinationv1.Lease) {
	copy(s.old[1:], s.old[:])
	s.old[0], s.leases = s.leases, leases
}

// list is the newest list, or one that a watch cache still has.
func (s *simServer) list(cached bool) []coordinationv1.Lease {
	if cached && s.rng.IntN(2) == 0 {
		return s.old[s.rng.IntN(len(s.old))]
	}
	return s.leases
}

func (s *simServer) get(name string) *coordinationv1.Lease {
	for i := range s.leases {
		if s.leases[i].Name == name {
			return &s.leases[i]
		}
	}
	return nil
}

func (s *simServer) create(r simRequest) (created *coordinationv1.Lease, exists bool) {
	if s.get(r.name) != nil {
		return nil, true
	}
	index := int(r.name[len(r.name)-1] - '0')
	if index >= s.seen || s.paused || ofNode(s.list(true), r.node) != nil {
		return nil, false // by the admission policies
	}
	if ofNode(s.leases, r.node) != nil {
		s.doubles++
	}
	s.uids++
	lease := coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: r.name, UID: types.UID(strconv.Itoa(s.uids))},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &r.node},
	}
	s.admitted[lease.UID] = s.seen
	s.changed(append(slices.Clone(s.leases), lease))
	return &s.leases[len(s.leases)-1], false
}

func (s *simServer) delete(name string, uid types.UID) {
	if lease := s.get(name); lease != nil && lease.UID == uid {
		s.changed(slices.DeleteFunc(slices.Clone(s.leases), func(l coordinationv1.Lease) bool { return l.UID == uid }))
	}
}

func (s *simServer) pools() map[string]string {
	pools := map[string]string{simPool: strconv.Itoa(s.n)}
	if s.paused {
		pools[pausedKey] = "freeze"
	}
	return pools
}

type schedule struct {
	*simServer
	agents []simAgent
	shrink bool // N may shrink
	// takeOver breaks the protocol as a time to live would: a waiting agent deletes the slot of another.
	takeOver bool
	reboots  int
}

func newSchedule(seed uint64, agents int) *schedule {
	rng := rand.New(rand.NewPCG(seed, 1))
	n := 1 + rng.IntN(3)
	s := &schedule{simServer: &simServer{rng: rng, n: n, seen: n, admitted: map[types.UID]int{}}, shrink: seed%2 == 0}
	s.agents = make([]simAgent, agents)
	for i := range s.agents {
		s.agents[i] = simAgent{name: "n" + strconv.Itoa(i)}
	}
	return s
}

// step is one move of somebody.
func (s *schedule) step() {
	switch dice := s.rng.IntN(100); {
	case dice < 2:
		s.resize()
	case dice < 4:
		s.paused = !s.paused && s.rng.IntN(4) == 0
	case dice < 8:
		s.seen = s.n
	case dice < 12 && len(s.late) > 0:
		late := s.late[0]
		s.late = s.late[1:]
		s.create(late)
	default:
		a := &s.agents[s.rng.IntN(len(s.agents))]
		if s.rng.IntN(20) == 0 {
			*a = simAgent{name: a.name, state: simCrashed, down: a.down}
			return
		}
		s.move(a)
	}
}

func (s *schedule) resize() {
	n := 1 + s.rng.IntN(4)
	if n < s.n && !s.shrink {
		return
	}
	s.shrank = s.shrank || n < s.n
	s.n = n
}

func (s *schedule) move(a *simAgent) {
	switch a.state {
	case simIdle:
		s.look(a)
	case simCreating:
		s.ask(a)
	case simHolding:
		// Verified by the quorum immediately before the act, as every step that cannot be undone is.
		if lease := s.get(a.lease); lease == nil || lease.UID != a.uid || holder(lease) != a.name {
			a.state = simIdle
			return
		}
		a.state, a.down = simDown, true
	case simDown:
		a.state, a.down = simReturned, false
		s.reboots++
	case simReturned:
		answer := s.rng.IntN(10)
		if answer > 0 {
			s.delete(a.lease, a.uid)
		}
		if answer > 1 { // else without an answer: it asks again
			a.state = simIdle
		}
	case simCrashed:
		a.down = false
		if lease := ofNode(s.leases, a.name); lease != nil { // found by a quorum read
			a.state, a.lease, a.uid = simReturned, lease.Name, lease.UID
			return
		}
		a.state = simIdle
	}
}

func (s *schedule) look(a *simAgent) {
	leases := s.list(a.settled)
	v := choose(s.pools(), simPool, leases, a.name)
	if v.Mine != nil {
		s.resume(a, v.Mine.Name)
		return
	}
	a.settled = true
	if s.takeOver && len(v.Free) == 0 && len(s.leases) > 0 {
		s.delete(s.leases[0].Name, s.leases[0].UID)
	}
	s.rng.Shuffle(len(v.Free), func(i, j int) { v.Free[i], v.Free[j] = v.Free[j], v.Free[i] })
	for _, index := range v.Free[:min(2, len(v.Free))] {
		a.names = append(a.names, slotName(simPool, index))
	}
	if len(a.names) > 0 {
		a.state = simCreating
	}
}

// ask is one creation: it arrives or not, now or late, and its answer does or not.
func (s *schedule) ask(a *simAgent) {
	name := a.names[0]
	a.names = a.names[1:]
	if len(a.names) == 0 {
		a.state = simIdle
	}
	request := simRequest{name, a.name}
	answered := true
	var created *coordinationv1.Lease
	exists := false
	switch s.rng.IntN(10) {
	case 0: // lost on the way
		answered = false
	case 1: // arrives after the agent has given up
		s.late = append(s.late, request)
		answered = false
	case 2: // its answer is lost
		s.create(request)
		answered = false
	default:
		created, exists = s.create(request)
	}
	switch {
	case created != nil:
		a.take(created)
	case !answered:
		a.settled, a.names, a.state = false, nil, simIdle
		s.resume(a, name)
	case exists:
		s.resume(a, name)
	default: // refused
		a.names, a.state = nil, simIdle
	}
}

func (s *schedule) resume(a *simAgent, name string) {
	if lease := s.get(name); lease != nil && holder(lease) == a.name {
		a.take(lease)
	}
}

func (a *simAgent) take(lease *coordinationv1.Lease) {
	a.state, a.names, a.lease, a.uid = simHolding, nil, lease.Name, lease.UID
}

// wrong says which promise is broken, or nothing.
func (s *schedule) wrong() string {
	most := 0
	for i := range s.leases {
		most = max(most, s.admitted[s.leases[i].UID])
	}
	if len(s.leases) > most {
		return fmt.Sprintf("%d slots are held, and N was %d at most when they were taken", len(s.leases), most)
	}
	if len(s.leases) > s.n && !s.shrank {
		return fmt.Sprintf("%d slots are held of %d", len(s.leases), s.n)
	}
	down := 0
	for i := range s.agents {
		if !s.agents[i].down {
			continue
		}
		down++
		if ofNode(s.leases, s.agents[i].name) == nil {
			return s.agents[i].name + " is down without a slot"
		}
	}
	if down > len(s.leases) {
		return fmt.Sprintf("%d nodes are down with %d slots", down, len(s.leases))
	}
	return ""
}

func (s *schedule) run(steps int) (problem string) {
	for i := range steps {
		s.step()
		if problem := s.wrong(); problem != "" {
			return fmt.Sprintf("step %d: %s", i, problem)
		}
	}
	return ""
}

// A schedule has a few agents and many of their moves; every thousandth has a thousand agents.
func simulate(seed uint64) (s *schedule, problem string) {
	if seed%1000 == 999 {
		s = newSchedule(seed, 1000)
		return s, s.run(2000)
	}
	s = newSchedule(seed, 2+int(seed%5))
	return s, s.run(120)
}

func TestNeverMoreThanNInAnySchedule(t *testing.T) {
	var next atomic.Uint64
	var reboots, doubles, most atomic.Int64
	var group sync.WaitGroup
	var mu sync.Mutex
	found := map[uint64]string{}
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for seed := next.Add(1) - 1; seed < schedules; seed = next.Add(1) - 1 {
				s, problem := simulate(seed)
				reboots.Add(int64(s.reboots))
				doubles.Add(int64(s.doubles))
				if s.reboots > 0 {
					most.Add(1)
				}
				if problem != "" {
					mu.Lock()
					found[seed] = problem
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d schedules, %d with reboots, %d reboots, %d second slots of one node, %d broken promises",
		schedules, most.Load(), reboots.Load(), doubles.Load(), len(found))
	for _, seed := range slices.Sorted(maps.Keys(found))[:min(5, len(found))] {
		t.Errorf("seed %d: %s", seed, found[seed])
	}
	if most.Load() < schedules/2 {
		t.Error("most schedules came to no reboot: they show nothing")
	}
}

// TestTheSimulationNoticesATakeOverByTime shows that the promises can be broken: by what the protocol leaves out.
func TestTheSimulationNoticesATakeOverByTime(t *testing.T) {
	for seed := range uint64(1000) {
		s := newSchedule(seed, 4)
		s.takeOver = true
		if s.run(200) != "" {
			return
		}
	}
	t.Error("a thousand schedules with take-overs broke nothing")
}
