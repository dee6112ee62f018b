// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"context"
	"sync"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// Join makes the machine a node of the cluster: a fake kubelet on the host reports the machine's own machine id and the
// boot id of each of its boots, and is silent whenever the machine is down. It returns when the Node is Ready.
func (m *Machine) Join(c *cluster.Cluster, o cluster.KubeletOptions) *cluster.Kubelet {
	m.t.Helper()
	o.MachineID, o.BootID, o.Address = m.MachineID(), m.BootID(), m.ip
	k := c.NewKubelet(m.name, o)
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { m.follow(ctx, k) })
	m.t.Cleanup(func() {
		stop()
		following.Wait()
	})
	return k
}

// follow keeps the kubelet in step with the machine.
func (m *Machine) follow(ctx context.Context, k *cluster.Kubelet) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	reported := k.BootID()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		boot := m.BootID()
		// A kubelet starts after the bus.
		if boot != "" && !m.Exists("/run/dbus/system_bus_socket") {
			boot = ""
		}
		switch {
		case boot == reported:
		case boot == "":
			k.Down()
			reported = ""
		case k.TryUp(boot) == nil: // the API server may be away: the next tick tries again
			reported = boot
		}
	}
}
