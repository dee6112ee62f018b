// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/window"
)

// sections are the top-level tables. Each is read over its defaults, never over what an earlier file said.
var sections = []struct {
	name string
	read func(root *table, c *Config, opts Options)
}{
	{"node", readNode},
	{"cluster", readCluster},
	{"source", readSources},
	{"taint", readTaint},
	{"window", readWindows},
	{"slot", readSlot},
	{"drain", readDrain},
	{"gate", readGate},
	{"reboot", readReboot},
	{"boot", readBoot},
	{"shutdown", readShutdown},
	{"metrics", readMetrics},
	{"notify", readNotify},
}

func readNode(root *table, c *Config, _ Options) {
	t, n := root.one("node"), &c.Node
	*n = Default().Node
	t.text("name", &n.Name, nodeName)
	t.close()
}

func readCluster(root *table, c *Config, _ Options) {
	t, cl := root.one("cluster"), &c.Cluster
	*cl = Default().Cluster
	t.someText("kubeconfig", &cl.Kubeconfig, absolute)
	t.close()
}

func readSources(root *table, c *Config, opts Options) {
	c.Sources = nil
	for _, t := range root.many("source") {
		s := Source{Options: maps.Clone(t.values)}
		delete(s.Options, "type")
		t.need("type")
		if opts.SourceTypes == nil {
			t.someText("type", &s.Type)
		} else {
			t.choice("type", &s.Type, opts.SourceTypes()...)
		}
		if s.Type == "" {
			continue
		}
		if opts.CheckSource != nil {
			for _, p := range opts.CheckSource(s.Type, s.Options) {
				t.report(p.Key, "%s", p.Message)
			}
		}
		// Two of one name would answer for each other: one could clear what the other requires.
		if slices.ContainsFunc(c.Sources, func(other Source) bool { return reflect.DeepEqual(s, other) }) {
			t.report("", "is given twice")
		}
		c.Sources = append(c.Sources, s)
	}
}

func readTaint(root *table, c *Config, _ Options) {
	t, ta := root.one("taint"), &c.Taint
	*ta = Default().Taint
	t.someText("key", &ta.Key, taintKey)
	if effect, _ := t.value("effect"); effect == "NoExecute" {
		t.report("effect", `"NoExecute" would throw the pods out past their disruption budgets: write %s`,
			choices(ownEffects))
	} else {
		t.choice("effect", &ta.Effect, ownEffects...)
	}
	t.choice("when", &ta.When, WhenRequired, WhenWindow)
	t.close()
}

func readWindows(root *table, c *Config, _ Options) {
	c.Windows = nil
	for _, t := range root.many("window") {
		c.Windows = append(c.Windows, readWindow(t))
	}
}

func readWindow(t *table) window.Window {
	w := window.Window{Location: time.Local}
	readDays(t, &w)

	var start, end string
	t.need("start", "end")
	t.someText("start", &start, func(s string) (err error) {
		w.Start, err = window.ParseClock(s)
		return err
	})
	t.someText("end", &end, func(s string) (err error) {
		w.End, err = window.ParseEnd(s)
		return err
	})
	if start != "" && start == end {
		t.report("end", `is the start too, which leaves no time: a whole day is "00:00" to "24:00"`)
	}

	var zone string
	t.someText("timezone", &zone, func(s string) error {
		location, err := loadLocation(s)
		if err == nil {
			w.Location = location
		}
		return err
	})
	t.close()
	return w
}

func readDays(t *table, w *window.Window) {
	list, ok := t.value("days")
	if !ok {
		w.Days = [7]bool{true, true, true, true, true, true, true}
		return
	}
	if list, ok := list.([]any); ok && len(list) == 0 {
		t.report("days", "is empty, so the window would never open: name a day, or leave the key out for every day")
	}
	var days []string
	t.texts("days", &days, func(s string) error {
		day, err := window.ParseDay(s)
		if err == nil {
			w.Days[day] = true
		}
		return err
	})
}

func readSlot(root *table, c *Config, _ Options) {
	t, s := root.one("slot"), &c.Slot
	*s = Default().Slot
	t.text("pool", &s.Pool, poolName)
	t.text("nodes", &s.Nodes, selector)
	t.count("max_not_ready", &s.MaxNotReady, "any")
	t.duration("max_hold", &s.MaxHold, time.Second)
	switch ownPool := s.Pool != "" && s.Pool != "default" && s.Pool != "control-plane"; {
	case s.Nodes != "" && !ownPool:
		t.report("nodes", "has no use: the nodes of the pools control-plane and default are known by their role")
	case s.Nodes == "" && ownPool && s.MaxNotReady != nil:
		t.report("max_not_ready", "needs nodes too: the label selector of the nodes of pool %s", quote(s.Pool))
	}
	t.close()
}

func readDrain(root *table, c *Config, _ Options) {
	t, d := root.one("drain"), &c.Drain
	*d = Default().Drain
	t.boolean("enabled", &d.Enabled)
	t.choice("identity", &d.Identity, IdentityAgent, IdentityKubelet)
	t.duration("timeout", &d.Timeout, time.Second)
	// Zero would be a forced deletion, which does not wait for the containers to end.
	t.duration("grace_period", &d.GracePeriod, time.Second, "pod")
	if d.GracePeriod > 0 && d.GracePeriod%time.Second != 0 {
		t.report("grace_period", "the API server takes whole seconds only")
	}
	t.text("skip", &d.Skip, selector)
	t.choice("unmanaged_pods", &d.UnmanagedPods, UnmanagedBlock, UnmanagedEvict)
	t.choice("after_timeout", &d.AfterTimeout, AfterRollBack, AfterReboot, AfterDelete)
	t.close()
}

func readGate(root *table, c *Config, _ Options) {
	t, g := root.one("gate"), &c.Gate
	*g = Default().Gate
	for _, t := range t.many("prometheus") {
		g.Prometheus = append(g.Prometheus, readPrometheus(t))
	}
	for _, t := range t.many("pods") {
		var pods string
		t.need("selector")
		t.someText("selector", &pods, selector)
		t.close()
		g.Pods = append(g.Pods, pods)
	}
	t.close()
}

func readPrometheus(t *table) (p Prometheus) {
	p.Query = FiringAlerts
	t.need("url")
	t.someText("url", &p.URL, webURL)
	t.someText("query", &p.Query)
	t.text("ca_file", &p.CAFile, absolute)
	t.text("token_file", &p.TokenFile, absolute)
	if strings.HasPrefix(p.URL, "http:") {
		if p.CAFile != "" {
			t.report("ca_file", "has no use: the URL is not https")
		}
		if p.TokenFile != "" {
			t.report("token_file", "would be sent in the clear: the URL is not https")
		}
	}
	t.close()
	return p
}

func readReboot(root *table, c *Config, _ Options) {
	t, r := root.one("reboot"), &c.Reboot
	*r = Default().Reboot
	t.choice("method", &r.Method, MethodFull, MethodSoft, MethodKexec, MethodAuto)
	t.duration("min_interval", &r.MinInterval, 0)
	t.duration("loop_guard", &r.LoopGuard, time.Second)
	t.boolean("refuse_beside", &r.RefuseBeside)
	t.close()
}

func readBoot(root *table, c *Config, _ Options) {
	t, b := root.one("boot"), &c.Boot
	*b = Default().Boot
	t.duration("settle", &b.Settle, 0)
	t.duration("deadline", &b.Deadline, time.Second)
	if t.sound("settle") && t.sound("deadline") && b.Settle >= b.Deadline {
		key := "deadline"
		if !t.has(key) {
			key = "settle"
		}
		t.report(key, "settle (%s) must be shorter than deadline (%s)", short(b.Settle), short(b.Deadline))
	}
	t.texts("ready_pods", &b.ReadyPods, selector)
	t.texts("remove_taints", &b.RemoveTaints, startupTaint)
	t.close()
}

// mostShutdown leaves the other units of the host their time.
const mostShutdown = 20 * time.Minute

func readShutdown(root *table, c *Config, _ Options) {
	t, s := root.one("shutdown"), &c.Shutdown
	*s = Default().Shutdown
	t.duration("drain", &s.Drain, time.Second, "off")
	if s.Drain > mostShutdown {
		t.report("drain", "%q is too long: systemd ends a shutdown of 30 minutes by force, so the most is %q",
			short(s.Drain), short(mostShutdown))
	}
	t.close()
}

func readMetrics(root *table, c *Config, _ Options) {
	t, m := root.one("metrics"), &c.Metrics
	*m = Default().Metrics
	t.text("listen", &m.Listen, listenAddress)
	t.text("textfile", &m.Textfile, absolute)
	t.close()
}

func readNotify(root *table, c *Config, _ Options) {
	t, n := root.one("notify"), &c.Notify
	*n = Default().Notify
	t.texts("urls", &n.URLs, webURL)
	t.close()
}

// checkAcross finds what two tables contradict each other in. given holds the root of the file that has the last word
// on each table.
func checkAcross(c *Config, given map[string]*table) {
	sub := func(name string) *table {
		root := given[name]
		if root == nil || !root.isTable(name) {
			return nil
		}
		return root.one(name)
	}
	slot, drain, boot := sub("slot"), sub("drain"), sub("boot")

	if c.Drain.Enabled && c.Drain.Timeout >= c.Slot.MaxHold && drain.sound("timeout") && slot.sound("max_hold") {
		t, key := slot, "max_hold"
		if drain.has("timeout") {
			t, key = drain, "timeout"
		}
		t.report(key, "drain.timeout (%s) must be shorter than slot.max_hold (%s), which ends the drain first",
			short(c.Drain.Timeout), short(c.Slot.MaxHold))
	}
	for i, entry := range c.Boot.RemoveTaints {
		if entry == c.Taint.Key || entry == c.Taint.Key+":"+c.Taint.Effect {
			boot.reportAt(boot.place.key("remove_taints").item(i), "remove_taints",
				"%s is the agent's own taint, which it removes by itself", quote(entry))
		}
	}
}
