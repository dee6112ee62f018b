// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/machines"
)

const record = "/var/lib/kured-agent/record.json"

// dropped is how many forged signals the agent counted.
func (n *node) dropped() (count int) {
	out, _ := n.Exec("kured-agent", "status", "--json")
	var status struct{ DroppedSignals int }
	if json.Unmarshal([]byte(out), &status) != nil {
		return 0
	}
	return status.DroppedSignals
}

// forge sends a signal as somebody who does not own the name that it would have to come from: to all, which the bus
// keeps from those who asked for the owner's, and to the agent, which has to look by itself.
func (n *node) forge(user, path, iface, member string, body ...string) {
	n.s.Helper()
	before := n.dropped()
	for _, to := range [][]string{nil, {"--destination=org.kured.Agent1"}} {
		emit := append(append([]string{"busctl", "emit"}, to...), path, iface, member)
		if _, err := n.RunAs(user, append(emit, body...)...); err != nil {
			n.s.Fatal(err)
		}
	}
	n.eventually("the forgery is counted", 20*time.Second, func() bool { return n.dropped() > before })
}

func (n *node) forgeUpdater(user, word string) {
	n.s.Helper()
	n.forge(user, "/com/example/Updater", "com.example.Updater", "StatusChanged", "uss", "7", "progress", word)
}

// mustRefuse runs a command as nobody, which has to be refused in these words.
func (n *node) mustRefuse(words string, argv ...string) {
	n.s.Helper()
	out, err := n.RunAs("nobody", argv...)
	if err == nil || !strings.Contains(err.Error(), words) {
		n.s.Errorf("nobody may %v: %s (%v), want %q", argv, out, err, words)
	}
}

// pair makes a node of Debian 12 and one of 13, and enables the agent on them. The fleet is paused: a need taints, and
// no more.
func (s *scene) pair(name, config string) (nodes []*node, mustRest func(tainted bool)) {
	s.Helper()
	s.pause()
	agents := map[*node]string{}
	for _, suite := range []string{debian12, debian13} {
		n := s.node(name+"-"+suite[:4], suite, config)
		n.RunUpdater(updater)
		n.enable()
		n.waitPhase("Idle")
		nodes, agents[n] = append(nodes, n), n.UnitProperty("kured-agent.service", "MainPID")
	}
	return nodes, func(tainted bool) {
		s.Helper()
		// A need has to be gone for five seconds to count as gone.
		s.stays("the agents are what they were", 6*time.Second, func() bool {
			return !slices.ContainsFunc(nodes, func(n *node) bool {
				return n.tainted() != tainted || n.cordoned() || len(n.Boots()) != 1 ||
					n.UnitProperty("kured-agent.service", "MainPID") != agents[n]
			})
		})
	}
}

func (s *scene) waitTainted(nodes []*node, tainted bool) {
	s.Helper()
	for _, n := range nodes {
		n.eventually(fmt.Sprintf("tainted is %t", tainted), 20*time.Second, func() bool { return n.tainted() == tainted })
	}
}

// openBus lets everybody ask the agent for everything, as far as the bus is concerned.
const openBus = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><policy context="mandatory"><allow send_destination="org.kured.Agent1"/></policy></busconfig>
`

func TestAnotherUserOfTheHostNeitherRequestsNorClearsNorStops(t *testing.T) {
	const (
		byTheBus    = "Rejected send message"
		byPolkit    = "Interactive authentication required"
		byTheKernel = "Permission denied"
		byTheAgent  = "only root and the user of kured-agent may do this"
	)
	s := newScene(t)
	nodes, mustRest := s.pair("users", quick)
	for _, n := range nodes {
		n.mustRefuse(byTheBus, "kured-agent", "request", "theirs", "for a test")
		n.MustRun("kured-agent", "request", "mine", "for a test")
	}
	s.waitTainted(nodes, true)
	for _, n := range nodes {
		n.mustRefuse(byTheBus, "kured-agent", "request", "--clear", "mine")
		n.mustRefuse(byTheBus, "kured-agent", "request", "--clear", "--all")
		for _, verb := range []string{"stop", "restart", "reload", "kill", "disable", "mask"} {
			n.mustRefuse(byPolkit, "systemctl", "--no-ask-password", verb, "kured-agent.service")
		}
		n.mustRefuse(byPolkit, "systemctl", "--no-ask-password", "reboot")
		n.mustRefuse(byTheKernel, "cat", "/etc/kured/kubeconfig")
		n.mustRefuse(byTheKernel, "cat", record)
		out, err := n.RunAs("nobody", "kured-agent", "status")
		if err != nil || !strings.Contains(out, "for a test [mine]") || strings.Contains(out, "theirs") {
			t.Errorf("%s, what everybody may see: %v\n%s", n.Name(), err, out)
		}
		n.Write("/etc/dbus-1/system.d/open.conf", openBus, 0o644)
		n.MustRun("systemctl", "reload", "dbus.service")
		n.mustRefuse(byTheAgent, "kured-agent", "request", "theirs", "for a test")
		n.mustRefuse(byTheAgent, "kured-agent", "request", "--clear", "mine")
		n.mustRefuse(byTheAgent, "kured-agent", "request", "--clear", "--all")
	}
	mustRest(true)
	for _, n := range nodes {
		n.MustRun("kured-agent", "request", "--clear", "mine")
	}
	s.waitTainted(nodes, false)
}

func TestForgedSignalsChangeNothing(t *testing.T) {
	s := newScene(t)
	nodes, mustRest := s.pair("forged", quick+machines.UpdaterSource)
	for _, n := range nodes {
		for _, user := range []string{"nobody", "root"} {
			n.forgeUpdater(user, "NEED_REBOOT")
			n.forge(user, "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", "b", "true")
			// That the updater is somebody else now.
			n.forge(user, "/org/freedesktop/DBus", "org.freedesktop.DBus", "NameOwnerChanged",
				"sss", "com.example.Updater", "", ":1.1")
		}
	}
	mustRest(false)
	for _, n := range nodes {
		n.Signal("NEED_REBOOT")
	}
	s.waitTainted(nodes, true)
	for _, n := range nodes {
		n.forgeUpdater("nobody", "IDLE")
		n.forgeUpdater("root", "IDLE")
	}
	mustRest(true)
	for _, n := range nodes {
		n.Signal("IDLE")
	}
	s.waitTainted(nodes, false)
}

// exposures are what somebody did to a file of the agent, and what undoes that. $f is the file.
var exposures = []struct{ path, spoil, mend, words string }{
	{"/etc/kured/config.toml", "chown nobody $f", "chown root $f", "belongs to user 65534: run chown root"},
	{"/etc/kured/config.toml", "chmod 0666 $f", "chmod 0644 $f", "can be written by others than its owner (mode 0666)"},
	{"/etc/kured/config.d/mine.toml", "chown nobody $f", "chown root $f", "belongs to user 65534: run chown root"},
	{"/etc/kured/config.d/mine.toml", "chmod 0664 $f", "chmod 0644 $f", "written by others than its owner (mode 0664)"},
	{"/etc/kured/config.d", "chmod 0777 $f", "chmod 0755 $f", "can be written by others than its owner (mode 0777)"},
	{"/etc/kured/kubeconfig", "chown nobody $f", "chown root $f", "belongs to user 65534: chown it to the user"},
	{"/etc/kured/kubeconfig", "chmod 0644 $f", "chmod 0640 $f", "everybody on this host can read or write"},
	{agentToken, "chmod 0640 $f", "chmod 0600 $f", "it is open to others (mode 0640)"},
	{agentToken, "chmod 0640 $f && chown nobody $f", "chmod 0600 $f && chown kured-agent $f", "it belongs to user 65534"},
	{record, "chmod 0666 $f", "chmod 0600 $f", "it is open to others (mode 0666)"},
	{record, "chmod 0644 $f && chown nobody $f", "chmod 0600 $f && chown kured-agent $f", "it belongs to user 65534"},
}

func TestFilesThatOthersCouldHaveWrittenOrReadAreRefused(t *testing.T) {
	s := newScene(t)
	s.setSlots(2)
	nodes, _ := s.pair("files", quick)
	for _, n := range nodes {
		n.Write("/etc/kured/config.d/mine.toml", "", 0o644)
		n.Write(agentToken, s.c.AgentToken(n.Name(), time.Hour), 0o600)
		n.MustExec("chown", "kured-agent:kured-agent", agentToken)
		n.requireByFile("linux-image")
		n.waitPhase("WaitingTurn") // there is a record
		for _, e := range exposures {
			n.MustExec("sh", "-c", "f="+e.path+"; "+e.spoil)
			_, _ = n.Run("systemctl", "restart", "kured-agent.service")
			n.mustSay(e.path, e.words)
			n.MustExec("sh", "-c", "f="+e.path+"; "+e.mend)
		}
		n.mustHaveBoots(1)
		n.MustRun("systemctl", "restart", "kured-agent.service")
		n.waitPhase("WaitingTurn")
	}
	s.resume()
	for _, n := range nodes {
		n.waitReturned(2)
	}
}

// mustSay looks for the words about a file: in the journal of an agent that does not start because of it, and is not
// started again, or in the status of one that does nothing because of it.
func (n *node) mustSay(path, words string) {
	n.s.Helper()
	says := func(text string) bool { return strings.Contains(text, path) && strings.Contains(text, words) }
	if path == record {
		n.eventually("the agent says "+words, 20*time.Second, func() bool { return says(n.Property("Why")) })
		return
	}
	journal := n.MustExec("journalctl", "--no-pager", "--lines=15", "--unit=kured-agent.service")
	if code := n.UnitProperty("kured-agent.service", "ExecMainStatus"); code != "78" || !says(journal) {
		n.s.Errorf("%s: exit %s, want 78 and %q, and in the journal:\n%s", path, code, words, journal)
	}
}
