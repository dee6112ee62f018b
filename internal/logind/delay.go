// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/kured-agent/kured-agent/internal/bus"
)

// Delay is our delay inhibitor. While it is held, a shutdown that anybody asks for waits for Release, but no longer than
// InhibitDelayMax: time to mark the Node.
type Delay struct {
	bus       *bus.Bus
	watch     sync.Once
	calledOff atomic.Bool // a shutdown was, since the last Take

	mu      sync.Mutex
	lock    *os.File
	decided string // the owner of logind's name that gave the lock, or denied it
}

func newDelay(b *bus.Bus) *Delay { return &Delay{bus: b} }

// Take takes the lock, or does nothing when that is settled: it is held, or was denied, or a shutdown is under way. It
// becomes unsettled, so that the next Take asks again, by Release, by a shutdown that is called off, and by another
// logind or bus. A denial is thus reported once; other errors are met again at the next Take. Nobody has to stop for
// either: without the lock a foreign reboot is only seen later.
func (d *Delay) Take(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watch.Do(func() { d.bus.Watch(prepareForShutdown, d.prepare) })
	owner := d.bus.Owner(name)
	if !d.calledOff.Swap(false) && owner != "" && owner == d.decided {
		return nil
	}
	d.decided = ""
	lock, err := d.bus.CallFile(ctx, bus.Call{
		Destination: name, Path: path, Member: iface + ".Inhibit",
		Args: []any{"shutdown", "kured-agent", "Marks the Kubernetes node before a shutdown", "delay"},
	})
	if err == nil {
		d.decided = owner
		d.release() // the old one after the new one: locks outlive a restart of logind
		d.lock = lock
		return nil
	}
	switch class := classify(err); class {
	case InProgress:
		d.decided = owner
		return nil
	case NotAuthorized, NoPolicy:
		d.decided = owner
		return fmt.Errorf("taking the delay inhibitor: denied: %w", err)
	default:
		return fmt.Errorf("taking the delay inhibitor: %w", err)
	}
}

// Release lets a shutdown go on. The next Take takes the lock again.
func (d *Delay) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.release()
	d.decided = ""
}

// Held says whether we hold the lock.
func (d *Delay) Held() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lock != nil
}

func (d *Delay) release() {
	if d.lock != nil {
		_ = d.lock.Close()
		d.lock = nil
	}
}

// prepare notes that a shutdown was called off. It runs on the bus goroutine.
func (d *Delay) prepare(s bus.Signal) {
	if active, ok := parsePrepare(s.Body); ok && !active {
		d.calledOff.Store(true)
	}
}

// parsePrepare reads b. An empty body has been seen, and once took the kubelet down (kubernetes/kubernetes#97951).
func parsePrepare(body []any) (active, ok bool) {
	if len(body) != 1 {
		return false, false
	}
	active, ok = body[0].(bool)
	return active, ok
}
