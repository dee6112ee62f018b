// SPDX-License-Identifier: Apache-2.0

// Command demo shows the main job: three Debian machines, nodes of one real control plane, all need a reboot at the same
// moment. It tells line by line what happens, as the API server and the machines see it, and ends with a table of the
// three. The exit status is 0 only if everything was as it should be. Needs root; "make demo" prepares what it needs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

const (
	replicas = 6
	spare    = 1 // pods of the application that its budget lets go at once
	bound    = 5 * time.Minute
)

// member is one machine of the demo with what makes it need a reboot.
type member struct {
	*machines.Machine
	system  string
	trigger string
	pull    func()
	boot    string // boot id before
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once, and everything it started with it
	host := cluster.NewHost("kured-agent-demo", os.Stderr)
	shown := false
	err := host.Run(func() { shown = demo(ctx, host) })
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	case !shown:
		os.Exit(1)
	}
}

func demo(ctx context.Context, host *cluster.Host) bool {
	deb, err := machines.Deb()
	if err != nil {
		host.Fatalf("%v", err)
	}
	updater, err := machines.BuildUpdater(host.TempDir())
	if err != nil {
		host.Fatalf("%v", err)
	}
	hub := machines.NewHub(host)
	fmt.Println("Three Debian machines: containers that boot their own systemd. They load no kernel, so DOWN is short.")
	fmt.Println("A control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, with the roles and policies of packaging/kubernetes.")
	c := cluster.Start(host, cluster.Options{Workloads: true, Scheduler: true, Audit: true})
	url := c.ListenIn(hub.NetNS(), machines.HubAddress+":6443")
	members := prepare(c, hub, url, deb, updater)

	fmt.Printf("An application of %d pods; its disruption budget lets %d go at a time.\n", replicas, spare)
	c.Apply(fmt.Sprintf(application, replicas, replicas-spare))
	c.MustKubectl("rollout", "status", "deployment/web", "--timeout=60s")

	fmt.Println("A healthy boot must last 1 s here before the node is given back ([boot] settle; the default is 10 s).")

	fmt.Printf("\nNow all three need a reboot. One may be down at a time. Seconds since then:\n\n")
	s := newStory(c, members)
	s.follow(ctx)
	for _, m := range members {
		s.require(m)
	}
	s.waitAll(ctx)
	return s.conclude()
}

// prepare boots the machines, installs the package, and enables the agent as an admin would.
func prepare(c *cluster.Cluster, hub *machines.Hub, url, deb, updater string) []*member {
	var members []*member
	for i, suite := range []string{"bookworm", "trixie", "bookworm"} {
		m := &member{Machine: hub.Machine(fmt.Sprintf("node-%d", i+1), machines.MachineOptions{Suite: suite})}
		m.Join(c, cluster.KubeletOptions{})
		m.Install(deb)
		config := "[boot]\nsettle = \"1s\"\n"
		switch i {
		case 0:
			config += machines.UpdaterSource + "\n[[source]]\ntype = \"request\"\n"
			m.RunUpdater(updater)
			m.trigger = "D-Bus signal of com.example.Updater: NEED_REBOOT"
			m.pull = func() { m.Signal("NEED_REBOOT") }
		case 1:
			m.trigger = "file /run/reboot-required, for package linux-image-amd64"
			m.pull = func() {
				m.Write("/run/reboot-required.pkgs", "linux-image-amd64\n", 0o644)
				m.Write("/run/reboot-required", "*** System restart required ***\n", 0o644)
			}
		default:
			m.trigger = "kured-agent request microcode"
			m.pull = func() { m.MustExec("kured-agent", "request", "microcode", "new CPU microcode") }
		}
		m.Configure(config, c.AgentKubeconfigFor(m.Name(), url))
		m.MustRun("systemctl", "enable", "--now", "kured-agent")
		m.boot, m.system = m.BootID(), system(m.Machine)
		fmt.Printf("%s: %s, package installed, kured-agent enabled.\n", m.Name(), m.system)
		members = append(members, m)
	}
	return members
}

// system names release and systemd of a machine: "Debian 12, systemd 252".
func system(m *machines.Machine) string {
	release := m.MustExec("sh", "-c", `. /etc/os-release; systemctl --version | { read -r _ version _; echo "Debian $VERSION_ID, systemd $version"; }`)
	return release[:len(release)-1]
}

const application = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: example.com/web:1
        resources: {requests: {cpu: 500m}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec:
  minAvailable: %d
  selector: {matchLabels: {app: web}}
`
