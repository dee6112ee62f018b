// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// newFleet is machines that share one cluster, and so one lock, with that many slots.
func newFleet(t *testing.T, machines, slots int) *pool {
	p := &pool{n: slots}
	mu := new(sync.Mutex)
	for i := range machines {
		s := newSim(t)
		s.mu, s.pool = mu, p
		s.node.UID = fmt.Sprintf("uid-%d", i+1)
		p.machines = append(p.machines, s)
	}
	return p
}

func (p *pool) life(d time.Duration) {
	var all sync.WaitGroup
	for _, s := range p.machines {
		all.Go(func() { s.life(d) })
	}
	all.Wait()
}

func TestEveryMachineOfAFleetGetsItsTurn(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			p := newFleet(t, 5, slots)
			p.life(4 * time.Hour)
			for i, s := range p.machines {
				s.atRest(fmt.Sprintf("machine %d of 5, %d slots", i+1, slots))
			}
		})
	}
}

// Whatever fails, crashes, loses power or is away, on whichever machine: never more nodes are cordoned by us than there
// are slots (every call of every machine looks, in sim.check), and in the end all are rebooted and clean.
func TestNeverMoreMachinesAreCordonedThanThereAreSlotsWhateverFails(t *testing.T) {
	t.Parallel()
	for part := range 4 {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			for i := range 75 {
				seed := uint64(75*part + i)
				synctest.Test(t, func(t *testing.T) {
					p := newFleet(t, 2+int(seed%2), 1)
					what := p.trouble(rand.New(rand.NewPCG(seed, 1)))
					p.life(30 * time.Hour)
					for i, s := range p.machines {
						s.atRest(fmt.Sprintf("seed %d, machine %d, %s", seed, i+1, what))
					}
				})
			}
		})
	}
}

// trouble draws what goes wrong, and says it.
func (p *pool) trouble(random *rand.Rand) (what string) {
	for i, s := range p.machines {
		s.latency = time.Duration(random.IntN(400)) * time.Millisecond
		for range random.IntN(4) {
			step, kind := random.IntN(70), fault(random.IntN(len(faultNames)))
			s.fault[step] = kind
			what += fmt.Sprintf("machine %d: step %d %s; ", i+1, step, faultNames[kind])
		}
		if random.IntN(3) == 0 {
			from := time.Duration(random.IntN(300)) * time.Second
			long := time.Duration(random.IntN(60)) * time.Minute
			s.away = func(age time.Duration) bool { return age >= from && age < from+long }
			what += fmt.Sprintf("machine %d: no API server from %s for %s; ", i+1, from, long)
		}
		if random.IntN(4) == 0 {
			s.deaf = 1
			what += fmt.Sprintf("machine %d: one reboot is not carried out; ", i+1)
		}
	}
	return what
}

// disturbances come and go; each is what people, other programs or a bad day do to one machine.
var disturbances = []struct {
	name    string
	on, off func(s *sim)
}{
	{"hold", func(s *sim) { s.node.Hold = "why" }, func(s *sim) { s.node.Hold = "" }},
	{"autoscaler", func(s *sim) { s.node.Leaving = "taint" }, func(s *sim) { s.node.Leaving = "" }},
	{"gate", func(s *sim) { s.gates = []string{"alert"} }, func(s *sim) { s.gates = nil }},
	{"inhibitor", func(s *sim) { s.inhibit = []string{"apt"} }, func(s *sim) { s.inhibit = nil }},
	{"need gone", func(s *sim) { s.need = false }, func(s *sim) { s.need = true }},
	{"stuck drain", func(s *sim) { s.stuck = true }, func(s *sim) { s.stuck = false }},
	{"boot not complete", func(s *sim) { s.incomplete = "x.service" }, func(s *sim) { s.incomplete = "" }},
	{"no logind", func(s *sim) { s.noLogind = true }, func(s *sim) { s.noLogind = false }},
	{"disk full", func(s *sim) { s.diskFull = true }, func(s *sim) { s.diskFull = false }},
	{"record unreadable", func(s *sim) { s.unreadable = errors.New("EIO") }, func(s *sim) { s.unreadable = nil }},
	{"record broken", func(s *sim) { s.record = plan.Record{Marked: true} }, func(*sim) {}},
	{"record lost", func(s *sim) { s.record = plan.Record{} }, func(*sim) {}},
	{"restarts", func(s *sim) { s.terminate() }, func(s *sim) { s.terminate() }},
	{"stop", func(s *sim) { s.forGood = true; s.terminate() }, func(s *sim) { s.forGood = false }},
	{"slot freed by a human", func(s *sim) {
		if s.lease != "" {
			s.lease, s.robbed = "", true
		}
	}, func(*sim) {}},
	{"uncordoned by a human", func(s *sim) { s.robbed, s.node.Unschedulable = true, s.human }, func(*sim) {}},
	{"Node created anew", func(s *sim) {
		s.robbed, s.lease = true, ""
		s.node = plan.Node{UID: s.node.UID + "'", BootID: s.boot(), Ready: true, Unschedulable: s.human}
	}, func(*sim) {}},
}

// Disturbances on top of the faults: nothing of ours is held in the end, and no invariant is broken on the way.
func TestWhateverDisturbsAFleetNothingIsHeldInTheEnd(t *testing.T) {
	t.Parallel()
	for part := range 4 {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			for i := range 100 {
				seed := uint64(100*part + i)
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 2))
					p := newFleet(t, 1+random.IntN(3), 1)
					what := p.trouble(random)
					for i, s := range p.machines {
						what += s.disturb(random, i+1)
					}
					p.life(40 * time.Hour)
					for i, s := range p.machines {
						s.settled(fmt.Sprintf("seed %d, machine %d, %s", seed, i+1, what))
					}
				})
			}
		})
	}
}

func (s *sim) disturb(random *rand.Rand, machine int) (what string) {
	s.proof = "credential"
	s.human = random.IntN(4) == 0
	s.node.Unschedulable = s.human
	for range random.IntN(4) {
		d := disturbances[random.IntN(len(disturbances))]
		from := time.Duration(random.IntN(1200)) * time.Second / 10
		long := time.Second + time.Duration(random.IntN(1200))*time.Second/4
		s.after(from, func() { d.on(s) })
		s.after(from+long, func() { d.off(s) })
		what += fmt.Sprintf("machine %d: %s from %s for %s; ", machine, d.name, from, long)
	}
	return what
}

// settled says that the machine holds nobody up, and has rebooted if that is still required.
func (s *sim) settled(what string) {
	s.t.Helper()
	s.notHeld(what)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.need && (s.node.Tainted || s.record.Marked) {
		s.t.Errorf("%s: nothing is required, and taint or record are left: %+v, %+v", what, s.node, s.record)
	}
	if s.need && s.bootNo < 2 || s.reboots > 3 {
		s.t.Errorf("%s: %d boots, %d reboots; record %+v", what, s.bootNo, s.reboots, s.record)
	}
}
