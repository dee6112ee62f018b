// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A scenario file tells a story. A line that begins with # is prose; a line `name value` sets what is observed; `do`
// performs the action of the last step as a perfect world would; `later 5m` lets time pass; `reboot` is a new boot.
// After each of them the decision follows, indented. `go test ./internal/plan -update` rewrites the indented lines:
// read the difference before you believe it.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(raw))
			if got != string(raw) {
				differs(t, file, string(raw), got)
			}
		})
	}
}

// differs fails with the lines that differ, or rewrites the file with -update.
func differs(t *testing.T, file, was, is string) {
	t.Helper()
	if !*update {
		t.Errorf("%s differs; if that is what you meant: go test ./internal/plan -update, and read git diff\n%s",
			file, lineDiff(was, is))
		return
	}
	if err := os.WriteFile(file, []byte(is), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: rewritten", file)
}

// lineDiff lists the lines that are gone (-) and new (+), each with its number in its own text.
func lineDiff(was, is string) string {
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	common := make([][]int, len(a)+1) // length of the longest common rest of a[i:] and b[j:]
	common[len(a)] = make([]int, len(b)+1)
	for i := len(a) - 1; i >= 0; i-- {
		common[i] = make([]int, len(b)+1)
		for j := len(b) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			}
		}
	}
	var out strings.Builder
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			i++
			fmt.Fprintf(&out, "%4d - %s\n", i, a[i-1])
		default:
			j++
			fmt.Fprintf(&out, "%4d + %s\n", j, b[j-1])
		}
	}
	return out.String()
}

func TestADifferenceShowsOnlyTheLinesThatDiffer(t *testing.T) {
	t.Parallel()
	want := "   2 - b\n   2 + x\n   3 + y\n   5 - e\n"
	if got := lineDiff("a\nb\nc\nd\ne", "a\nx\ny\nc\nd"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

type world struct {
	p    Policy
	o    Observed
	step Step
}

func play(t *testing.T, script string) string {
	t.Helper()
	w := newWorld()
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "    ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		if err := w.run(word, strings.TrimSpace(rest)); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		w.step = Next(w.p, w.o)
		fmt.Fprintf(&out, "    %s: %s\n", w.step.Phase, w.step.Action)
		fmt.Fprintf(&out, "        %s\n", w.step.Why)
		if w.step.Wake > 0 {
			fmt.Fprintf(&out, "        looks again in %s\n", w.step.Wake-w.o.Uptime)
		}
	}
	return out.String()
}

func newWorld() *world {
	return &world{
		p: Policy{
			MinInterval: time.Hour, LoopGuard: 24 * time.Hour, MaxHold: 30 * time.Minute, DrainTimeout: 20 * time.Minute,
			RebootDeadline: 2 * time.Minute, Settle: 10 * time.Second, BootDeadline: 15 * time.Minute,
		},
		o: Observed{
			Now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Uptime: time.Hour, Boot: "boot-1",
			Window: Window{Open: true}, Node: Node{UID: "uid-1", BootID: "boot-1", Ready: true},
			Health: Health{OK: true, Since: time.Minute}, Pods: Pods{Known: true},
		},
	}
}

func (w *world) run(word, value string) error {
	o := &w.o
	on := value == "yes"
	switch word {
	case "need":
		level, ids, _ := strings.Cut(value, " ")
		o.Need = map[string]Level{"no": NotRequired, "yes": Required, "unknown": Unknown}[level]
		o.Reasons = nil
		for id := range strings.FieldsSeq(ids) {
			o.Reasons = append(o.Reasons, Reason{Source: "file", ID: id, Kind: KindFull})
		}
	case "do":
		w.do()
	case "fails": // the action of the last step fails: nothing changes
	case "later":
		d, err := time.ParseDuration(value)
		if err != nil {
			return err
		}
		o.Now, o.Uptime = o.Now.Add(d), o.Uptime+d
	case "reboot":
		o.Boot, o.Uptime = value, 30*time.Second
		o.Shutdown, o.Health, o.Pods, o.Turn = false,
			Health{Why: "the kubelet has not reported this boot yet"}, Pods{Known: true}, Turn{}
		o.PreReboot = TargetInactive
	case "healthy":
		o.Health = Health{OK: on, Since: o.Uptime}
		if !on {
			o.Health.Why = "the Node is not Ready"
		}
	case "boot-unit":
		o.BootUnitWorks = on
	case "shutdown":
		o.Shutdown = on
	case "delay-inhibitor-held":
		o.Delaying = on
	case "beside":
		w.p.RefuseBeside, o.Beside = true, list(value)
	case "inhibitor":
		o.Inhibitors = list(value)
	case "gate":
		o.Gates, o.GatesSince = list(value), o.Uptime
	case "hold":
		o.Node.Hold = strings.TrimPrefix(value, "none")
	case "autoscaler":
		o.Node.Leaving = value
	case "window":
		return w.window(value)
	case "taint-in-window":
		w.p.TaintInWindow = on
	case "after-timeout":
		w.p.AfterTimeout = map[string]AfterTimeout{"roll-back": TimeoutRollsBack, "reboot": TimeoutReboots,
			"delete": TimeoutDeletes}[value]
	case "agent-restarts":
		o.AskedHere = false
	case "clock": // is set to that time after the start
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return err
		}
		o.Now = at
	case "taint-key-changed":
		o.Node.Tainted, o.Node.Stray = false, o.Node.Tainted
	case "startup-taint":
		w.p.StartupTaints, o.Node.Startup = true, on
	case "turn-taken-by":
		o.Turn = Turn{Next: o.Uptime + 5*time.Second, Why: value}
	case "pods":
		left, why, _ := strings.Cut(value, " ")
		n, err := strconv.Atoi(left)
		if err != nil {
			return err
		}
		o.Pods = Pods{Known: true, Left: n, Why: why}
	case "pods-unknown":
		o.Pods = Pods{}
	case "pods-fatal":
		o.Pods = Pods{Known: true, Left: 1, Why: value, Fatal: true}
	case "pre-reboot":
		o.PreReboot = map[string]Target{"reached": TargetReached, "inactive": TargetInactive, "starting": TargetStarting,
			"failed": TargetFailed}[value]
		o.PreWhy = "drain-the-database.service"
	case "slot-lost":
		o.Slot.State = SlotLost
	case "uncordoned-by-somebody":
		o.Node.Unschedulable = false
	case "cordoned-by-a-human":
		o.Node.Unschedulable = true
	case "api":
		o.API, o.APIWhy = map[string]API{"away": APIAway, "unneeded": APIUnneeded, "read": APIRead}[value],
			"connection refused"
	case "node-uid":
		o.Node = Node{UID: value, Ready: true, BootID: o.Boot}
	case "node-gone":
		o.Node = Node{}
	case "stopping":
		o.Stopping = on
	default:
		return fmt.Errorf("no such word")
	}
	if word != "api" && o.API == APIUnneeded && (o.Need != NotRequired || o.Record.Marked || o.Node.Startup) {
		o.API = APIRead
	}
	return nil
}

func (w *world) window(value string) error {
	state, in, _ := strings.Cut(value, " ")
	d, err := time.ParseDuration(in)
	if err != nil {
		return err
	}
	if state == "open" {
		w.o.Window = Window{Open: true, Closes: w.o.Now.Add(d)}
	} else {
		w.o.Window = Window{Opens: w.o.Now.Add(d)}
	}
	return nil
}

func list(value string) []string {
	if value == "none" {
		return nil
	}
	return []string{value}
}

// do is the effect of each action in a world where nothing goes wrong.
func (w *world) do() {
	o := &w.o
	r := &o.Record
	switch w.step.Action {
	case Taint:
		o.Node.Tainted, o.Node.Stray = true, false
		r.Boot, r.NodeUID, r.Marked = o.Boot, o.Node.UID, true
	case Acquire:
		r.Boot, r.NodeUID, r.Marked = o.Boot, o.Node.UID, true
		r.Slot = &SlotRef{Name: "slot-default-0", UID: "lease-1", Taken: o.Uptime}
		o.Slot = Slot{State: SlotOurs, Name: r.Slot.Name, UID: r.Slot.UID, Boot: o.Boot, Taken: o.Uptime}
	case Cordon:
		if !o.Node.Unschedulable {
			o.Node.Unschedulable, o.Node.Marker = true, o.Boot
		}
	case Evict, DeletePods:
		o.Pods.Next = o.Uptime + 5*time.Second
	case StartTarget:
		o.PreReboot = TargetStarting
	case Reboot:
		r.Asked = &Asked{At: o.Uptime, Reasons: o.Reasons}
		o.AskedHere = true
	case Unask:
		r.Asked = nil
	case LetGo:
		o.Delaying = false
	case Return, Clean:
		o.Node.Startup = o.Node.Startup && w.step.Action == Clean
		o.Node.Tainted, o.Node.Stray = false, false
		w.rollBack()
	case RollBack:
		w.rollBack()
	case Release:
		r.Slot, o.Slot = nil, Slot{}
	case NoteFailure:
		count := 1
		if r.Failure != nil {
			count = r.Failure.Count + 1
		}
		r.Failure, r.Asked = &Failure{Moment: w.now(), Count: count, Why: w.step.Why}, nil
	case Settle:
		if r.Asked != nil && r.Boot != o.Boot {
			r.Last, r.Failure = &LastReboot{Moment: w.now(), Reasons: r.Asked.Reasons}, nil
		}
		r.Boot, r.Startup, r.Marked, r.Slot, r.Asked = o.Boot, o.Boot, false, nil, nil
		o.API = APIUnneeded
	case Forget:
		r.Boot, r.NodeUID, r.Marked, r.Slot, r.Asked, o.Slot = o.Boot, o.Node.UID, false, nil, nil, Slot{}
	case None:
	}
}

func (w *world) now() Moment { return Moment{At: w.o.Now, Boot: w.o.Boot, Up: w.o.Uptime} }

func (w *world) rollBack() {
	if w.o.Node.Marker != "" {
		w.o.Node.Unschedulable, w.o.Node.Marker = false, ""
	}
}
