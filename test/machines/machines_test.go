// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package machines_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

func TestAMachineRebootsThroughLogindWithANewBootIDAndItsDisk(t *testing.T) {
	for _, suite := range machines.Suites {
		t.Run(suite, func(t *testing.T) {
			m := machines.NewHub(t).Machine("m1", machines.MachineOptions{Suite: suite})
			first, machine := m.BootID(), m.MachineID()
			if first == "" || len(machine) != 32 {
				t.Fatalf("boot id %q, machine id %q", first, machine)
			}
			if seen := m.MustRun("cat", "/proc/sys/kernel/random/boot_id"); strings.TrimSpace(seen) != first {
				t.Errorf("the machine sees boot id %q, the host %q", seen, first)
			}
			m.Write("/etc/kept", "disk", 0o644)
			m.Write("/run/lost", "memory", 0o644)
			m.Reboot()
			if m.BootID() == first || m.BootID() == "" {
				t.Errorf("boot id is still %q", first)
			}
			if m.MachineID() != machine {
				t.Errorf("machine id became %q", m.MachineID())
			}
			if !m.Exists("/etc/kept") || m.Exists("/run/lost") {
				t.Error("the disk was lost or /run was kept")
			}
			if boots := m.Boots(); len(boots) != 2 || boots[0].Exit != 133 {
				t.Errorf("boots: %+v", boots)
			}
		})
	}
}

func TestAMachineLosesItsPowerAndStartsAgain(t *testing.T) {
	m := machines.NewHub(t).Machine("m1", machines.MachineOptions{})
	m.Write("/etc/kept", "disk", 0o644)
	m.Crash()
	if m.BootID() != "" || m.On() {
		t.Error("it is still on")
	}
	m.Start()
	m.WaitBoot(2)
	if !m.Exists("/etc/kept") {
		t.Error("the disk was lost")
	}
	began := time.Now()
	m.Down()
	if boots := m.Boots(); boots[1].Exit != 0 {
		t.Errorf("boots: %+v after %s", boots, time.Since(began))
	}
}

func TestTheNodeFollowsTheMachineAndTheMachineReachesTheAPIServer(t *testing.T) {
	hub := machines.NewHub(t)
	c := cluster.Start(t, cluster.Options{})
	url := c.ListenIn(hub.NetNS(), machines.HubAddress+":6443")
	m := hub.Machine("m1", machines.MachineOptions{})
	m.Join(c, cluster.KubeletOptions{})
	if info := c.Node("m1").Status.NodeInfo; info.MachineID != m.MachineID() || info.BootID != m.BootID() {
		t.Errorf("node info %+v, machine %s, boot %s", info, m.MachineID(), m.BootID())
	}
	m.Write("/root/ask", `exec 3<>/dev/tcp/`+strings.Replace(strings.TrimPrefix(url, "https://"), ":", "/", 1)+"\necho reached\n", 0o644)
	if out := m.MustRun("bash", "/root/ask"); !strings.Contains(out, "reached") {
		t.Errorf("the machine got %q", out)
	}
	m.Reboot()
	c.Eventually("the node has the boot id of the new boot", 10*time.Second, func() bool {
		return c.Node("m1").Status.NodeInfo.BootID == m.BootID()
	})
}
