// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/base64"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/machines"
)

const (
	kubeletPKI = "/var/lib/kubelet/pki/"
	current    = kubeletPKI + "kubelet-client-current.pem"
	ownCopy    = "/run/credentials/kured-agent.service/kubelet-client-current.pem"
)

// certify gives the kubelet a new certificate in the way of a kubelet: a new file, and the link renamed over the old one.
func (n *node) certify(date string) {
	n.s.Helper()
	content, err := os.ReadFile(n.s.c.KubeletKubeconfig(n.Name()))
	if err != nil {
		n.s.Fatal(err)
	}
	data := regexp.MustCompile(`    client-(?:certificate|key)-data: (\S+)\n?`)
	var pem string
	for _, match := range data.FindAllSubmatch(content, -1) {
		part, err := base64.StdEncoding.DecodeString(string(match[1]))
		if err != nil {
			n.s.Fatal(err)
		}
		pem += string(part)
	}
	text := data.ReplaceAllString(string(content), "")
	text = strings.Replace(text, "  user:\n",
		"  user:\n    client-certificate: "+current+"\n    client-key: "+current+"\n", 1)
	n.Write("/etc/kubernetes/kubelet.conf", strings.Replace(text, n.s.c.URL(), n.s.url, 1), 0o600)
	file := kubeletPKI + "kubelet-client-" + date + ".pem"
	n.Write(file, pem, 0o600)
	n.MustRun("chmod", "0700", "/var/lib/kubelet", kubeletPKI)
	n.MustRun("ln", "-sfn", file, kubeletPKI+"kubelet-client-updated.pem")
	n.MustRun("mv", "-T", kubeletPKI+"kubelet-client-updated.pem", current)
}

// lendKubelet installs kubelet-identity.conf as it says itself.
func (n *node) lendKubelet() {
	n.s.Helper()
	example := func(name string) string {
		text, err := os.ReadFile("../../packaging/examples/" + name) // a machine has no /usr/share/doc
		if err != nil {
			n.s.Fatal(err)
		}
		return string(text)
	}
	for unit, conf := range map[string]string{
		"kured-agent": "kubelet-identity.conf", "kured-agent-boot": "kubelet-identity.conf",
		"kured-agent-shutdown": "kubelet-identity-shutdown.conf",
	} {
		n.Write("/etc/systemd/system/"+unit+".service.d/kubelet-identity.conf", example(conf), 0o644)
	}
	for _, unit := range []string{"kured-agent-kubelet.path", "kured-agent-kubelet.service"} {
		n.Write("/etc/systemd/system/"+unit, example(unit), 0o644)
	}
	n.MustRun("systemctl", "daemon-reload")
	n.MustRun("systemctl", "enable", "--now", "kured-agent-kubelet.path")
}

// evictedBy waits until a pod was evicted and says by whom.
func (n *node) evictedBy(pod string, times int) string {
	n.s.Helper()
	done := n.s.c.WaitRequests(func(r cluster.Request) bool {
		return r.Subresource == "eviction" && r.Name == pod && r.Code/100 == 2
	}, times, cycleBound)
	if len(done) != times {
		n.s.Fatalf("%s: %d evictions, want %d", pod, len(done), times)
	}
	return done[times-1].User
}

func TestTheKubeletsCredentialIsLentToAnAgentWithoutPrivileges(t *testing.T) {
	for _, suite := range machines.Suites {
		t.Run(suite, func(t *testing.T) {
			s := newScene(t)
			name := "lent-" + suite[:4]
			n := s.node(name, suite, quick+"ready_pods = [\"app=cni-"+name+"\"]\n[drain]\nidentity = \"kubelet\"\n"+
				"[shutdown]\ndrain = \"1m\"\n")
			s.c.Pod(name, "cni-"+name, cluster.PodOptions{Owner: "DaemonSet", OwnerName: "cni-" + name})
			s.c.Pod(name, name, cluster.PodOptions{Owner: "ReplicaSet"})
			s.c.WaitRunning(name, "cni-"+name)
			n.certify("2026-01-01")
			n.lendKubelet()
			n.enable()
			for _, path := range []string{current, "/etc/kubernetes/kubelet.conf", "/etc/shadow"} {
				if _, err := n.RunAs("kured-agent", "cat", path); err == nil {
					t.Errorf("the agent's user reads %s", path)
				}
			}
			if mine, err := n.RunAs("kured-agent", "cat", ownCopy); err != nil || !strings.Contains(mine, "PRIVATE KEY") {
				t.Errorf("the agent's user does not read its copy: %v", err)
			}
			if _, err := n.RunAs("nobody", "cat", ownCopy); err == nil {
				t.Error("nobody reads the copy")
			}
			n.requireByFile("linux-image")
			kubelet := "system:node:" + name
			if by := n.evictedBy(name, 1); by != kubelet {
				t.Errorf("evicted by %s", by)
			}
			n.waitReturned(2)

			before, _ := n.Exec("cat", ownCopy)
			n.certify("2026-09-01")
			n.eventually("the agent takes the new certificate", 60*time.Second, func() bool {
				now, err := n.Exec("cat", ownCopy)
				return err == nil && now != before && n.UnitProperty("kured-agent.service", "ActiveState") == "active"
			})

			s.c.Pod(name, name, cluster.PodOptions{Owner: "ReplicaSet"})
			s.c.WaitRunning(name)
			n.eventually("the unit that drains is there", 20*time.Second, n.awaitsShutdown)
			_, _ = n.Exec("reboot")
			if by := n.evictedBy(name, 2); by != kubelet {
				t.Errorf("evicted in a shutdown by %s", by)
			}
			n.waitReturned(3)
			n.mustHaveBoots(3)
		})
	}
}
