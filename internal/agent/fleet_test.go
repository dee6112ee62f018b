// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
