// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

// Every type must have its own file, its own tests, and a stanza in the reference configuration.
func TestEveryTypeHasItsFileItsTestsAndItsStanza(t *testing.T) {
	example, err := os.ReadFile("../../config.example.toml")
	if err != nil {
		t.Error(err)
	}
	manual, err := os.ReadFile("../../docs/man/kured-agent.toml.5")
	if err != nil {
		t.Error(err)
	}
	if len(Types()) == 0 {
		t.Error("no type is registered")
	}
	for _, typ := range Types() {
		if !strings.Contains(string(example), `type = "`+typ+`"`) {
			t.Errorf("config.example.toml has no stanza with type = %q", typ)
		}
		base := strings.ReplaceAll(typ, "-", "_")
		if _, err := os.Stat(base + ".go"); err != nil {
			t.Errorf("source type %q has no file of its own: %v", typ, err)
		}
		if tests, _ := os.ReadFile(base + "_test.go"); !strings.Contains(string(tests), "\nfunc Test") {
			t.Errorf("source type %q has no tests: write at least one func Test in %s_test.go", typ, base)
		}
		if !strings.Contains(string(manual), `.It Li \(dq`+typ+`\(dq`) {
			t.Errorf(`docs/man/kured-agent.toml.5 says nothing about type %q: add ".It Li \(dq%s\(dq" and a sentence`, typ, typ)
		}
		for _, key := range Keys(typ) {
			if !strings.Contains(string(example), key+" =") {
				t.Errorf("config.example.toml does not show the key %q of %q", key, typ)
			}
		}
	}
}

func TestARegistrationThatIsDuplicateOrIncompletePanics(t *testing.T) {
	for _, typ := range []string{"file", "new"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("registering %q did not panic", typ)
				}
			}()
			register(typ, kind{})
		}()
	}
}

func TestOptionsAreChecked(t *testing.T) {
	signal := func(change map[string]any) map[string]any {
		options := map[string]any{
			"name": "com.example.Updater", "path": "/com/example/Updater", "interface": "com.example.Updater",
			"signal": "Changed", "argument": int64(2), "equals": "NEED_REBOOT",
		}
		for k, v := range change {
			if options[k] = v; v == nil {
				delete(options, k)
			}
		}
		return options
	}
	for name, c := range map[string]struct {
		typ     string
		options map[string]any
		want    []string // "key: part of the message"
	}{
		"good file":           {"file", map[string]any{"path": "/run/reboot-required"}, nil},
		"type is passed over": {"file", map[string]any{"type": "file", "path": "/run/x"}, nil},
		"unknown type":        {"fil", nil, []string{`type: did you mean "file"?`}},
		"missing path":        {"file", nil, []string{`: needs the key "path"`}},
		"typo":                {"file", map[string]any{"pth": "/run/x"}, []string{`pth: did you mean "path"?`, `: needs`}},
		"far from any key":    {"request", map[string]any{"colour": "red"}, []string{`colour: unknown key`}},
		"relative path":       {"file", map[string]any{"path": "run/x"}, []string{"path: not an absolute path"}},
		"path not clean":      {"file", map[string]any{"path": "/run/../x"}, []string{"path: not an absolute path"}},
		"path of a type":      {"file", map[string]any{"path": int64(3)}, []string{"path: is an integer"}},
		"good signal":         {"dbus-signal", signal(nil), nil},
		"any signal":          {"dbus-signal", signal(map[string]any{"argument": nil, "equals": nil}), nil},
		"argument alone": {"dbus-signal", signal(map[string]any{"equals": nil}),
			[]string{`argument: needs the key "equals"`}},
		"equals alone": {"dbus-signal", signal(map[string]any{"argument": nil}),
			[]string{`equals: needs the key "argument"`}},
		"argument too big": {"dbus-signal", signal(map[string]any{"argument": int64(64)}),
			[]string{"argument: not between"}},
		"argument a string": {"dbus-signal", signal(map[string]any{"argument": "2"}), []string{"argument: is a string"}},
		"equals a float":    {"dbus-signal", signal(map[string]any{"equals": 1.5}), []string{"equals: is a float"}},
		"unique bus name":   {"dbus-signal", signal(map[string]any{"name": ":1.2"}), []string{"name: not a bus name"}},
		"long bus name": {"dbus-signal", signal(map[string]any{"name": "a." + strings.Repeat("b", 300)}),
			[]string{"name: not a bus name"}},
		"bad object path": {"dbus-signal", signal(map[string]any{"path": "com/example"}),
			[]string{"path: not an object path"}},
		"bad interface": {"dbus-signal", signal(map[string]any{"interface": "x'y.z"}),
			[]string{"interface: not an interface"}},
		"bad member": {"dbus-signal", signal(map[string]any{"signal": "a.b"}),
			[]string{"signal: not a single name"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Check(c.typ, c.options)
			if len(got) != len(c.want) {
				t.Fatalf("got %v, want %v", got, c.want)
			}
			for i, want := range c.want {
				key, part, _ := strings.Cut(want, ": ")
				if got[i].Key != strings.TrimSuffix(key, ":") && key != "" ||
					!strings.Contains(got[i].Message, strings.TrimSpace(part)) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
		})
	}
}

func TestBuildRefusesWhatCheckRefusesAndTellsNamesakesApart(t *testing.T) {
	env := Env{Bus: bus.New(bus.Options{}), Runtime: t.TempDir()}
	if _, err := Build([]Spec{{Type: "file"}, {Type: "nonsense"}}, env); err == nil ||
		!strings.Contains(err.Error(), "needs the key") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("Build = %v", err)
	}
	sources, err := Build([]Spec{{Type: "request"}, {Type: "request"}}, env)
	if err != nil || sources[0].Name() != "request" || sources[1].Name() != "request#2" ||
		typeOf("request#2") != "request" {
		t.Errorf("names %q and %q, %v", sources[0].Name(), sources[1].Name(), err)
	}
}

func TestTheDefaultSetIsWholeAndValid(t *testing.T) {
	specs := Defaults()
	if len(specs) < 4 || specs[0].Type != "file" || specs[1].Type != "file" || specs[2].Type != "request" {
		t.Errorf("the default set begins with %+v", specs)
	}
	for _, s := range specs {
		if problems := Check(s.Type, s.Options); len(problems) > 0 || !s.Preset {
			t.Errorf("a default is wrong: %+v, %v", s, problems)
		}
	}
}

func TestAPresetRestsUntilItsServiceIsInstalled(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		specs := []Spec{{Type: "update-engine", Preset: true}}
		sources, err := Build(specs, Env{Bus: bus.New(bus.Options{}), Root: root, Runtime: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		set := NewSet(sources, nil, settle, nil)
		go func() { _ = set.Run(t.Context()) }()
		set.WaitFirst(t.Context())
		_, _, status := set.Snapshot()
		if s := status[0].State; s.Note != notInstalled || s.Level != plan.NotRequired || s.Err != nil {
			t.Errorf("before: %+v", s)
		}
		write(t, filepath.Join(root, updateInstalled[0]), "<busconfig/>")
		time.Sleep(pollLevel + waitBus + time.Second)
		_, _, status = set.Snapshot()
		if s := status[0].State; !errors.Is(s.Err, bus.ErrNotConnected) {
			t.Errorf("afterwards: %+v", s)
		}
	})
}

func TestABusThatNeverComesIsToldWithinTheFirstWait(t *testing.T) {
	options := map[string]map[string]any{
		"dbus-signal": needRebootSignal, "dbus-property": propertyOptions(true), "rebootmgr": nil,
		"systemd-unit": targetOptions, "update-engine": nil,
	}
	for typ, options := range options {
		synctest.Test(t, func(t *testing.T) {
			// A Bus that is not run stands for one that hangs in the greeting: neither ever has a connection.
			sources, err := Build([]Spec{{Type: typ, Options: options}}, Env{Bus: bus.New(bus.Options{}), Runtime: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			set := NewSet(sources, []plan.Reason{{Source: sources[0].Name(), ID: "known before"}}, settle, nil)
			go func() { _ = set.Run(t.Context()) }()
			began := time.Now()
			set.WaitFirst(t.Context())
			level, _, status := set.Snapshot()
			if level != plan.Unknown || !errors.Is(status[0].State.Err, bus.ErrNotConnected) || time.Since(began) >= firstReads {
				t.Errorf("%s: level %v, state %+v after %v", typ, level, status[0].State, time.Since(began))
			}
		})
	}
}

func TestWhatASourceSaysIsBounded(t *testing.T) {
	s := State{Level: plan.Required}
	for range 100 {
		s.Reasons = append(s.Reasons,
			plan.Reason{ID: strings.Repeat("é", 100), Text: "a\x1b[31mb\n" + strings.Repeat("x", 1000)})
	}
	got := bound("file:/x", s)
	if len(got.Reasons) != plan.MaxReasons {
		t.Errorf("%d reasons", len(got.Reasons))
	}
	want := plan.Reason{Source: "file:/x", ID: strings.Repeat("é", 64), Kind: plan.KindFull, Text: got.Reasons[0].Text}
	if got.Reasons[0] != want || len(want.Text) > plan.MaxReasonText || !strings.HasPrefix(want.Text, "a [31mb x") {
		t.Errorf("got %+v", got.Reasons[0])
	}
	if got := bound("request", State{Level: plan.Required}); len(got.Reasons) != 1 || got.Reasons[0].ID != "request" {
		t.Errorf("a requirement without a reason gives %v", got.Reasons)
	}
}

func FuzzClean(f *testing.F) {
	f.Add("linux-image-6.1\n", 4)
	f.Add("\xff\xfeé", 3)
	f.Fuzz(func(t *testing.T, s string, size int) {
		size = min(max(size, 0), 1000)
		got := clean(s, size)
		// A space replaces at least one byte, and a broken byte only ever one.
		if len(got) > size {
			t.Errorf("clean(%q, %d) has %d bytes", s, size, len(got))
		}
		if wrong := wrongText("text", got, size); wrong != "" {
			t.Errorf("clean(%q, %d) = %q: %s", s, size, got, wrong)
		}
	})
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// probe runs one source and keeps its newest state.
type probe struct {
	t      *testing.T
	mu     sync.Mutex
	last   *State
	count  int
	cancel context.CancelFunc
	done   chan struct{}
}

func start(t *testing.T, env Env, typ string, options map[string]any) *probe {
	t.Helper()
	if env.Root == "" {
		env.Root = t.TempDir()
	}
	if env.Runtime == "" {
		env.Runtime = t.TempDir()
	}
	sources, err := Build([]Spec{{Type: typ, Options: options}}, env)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &probe{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		err := sources[0].Run(ctx, func(s State) {
			s = bound(sources[0].Name(), s)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.last = &s
			p.count++
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the source ended with %v", err)
		}
	}()
	t.Cleanup(p.stop)
	return p
}

func (p *probe) stop() {
	p.cancel()
	<-p.done
}

func (p *probe) state() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		return State{Level: -1}
	}
	return *p.last
}

func (p *probe) reports() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// becomes waits for a level and returns the state.
func (p *probe) becomes(what string, level plan.Level) State {
	p.t.Helper()
	return p.shows(what, func(s State) bool { return s.Level == level })
}

func (p *probe) shows(what string, want func(State) bool) State {
	p.t.Helper()
	var s State
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); ; <-tick.C {
		if s = p.state(); want(s) {
			return s
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: the state is still %+v", what, s)
		}
	}
}

// startBus runs a Bus against the daemon until the test ends.
func startBus(t *testing.T, d *bustest.Daemon) *bus.Bus {
	t.Helper()
	b := bus.New(bus.Options{Address: d.Address})
	bustest.Run(t, b)
	return b
}

func ids(s State) []string {
	var out []string
	for _, r := range s.Reasons {
		out = append(out, r.ID)
	}
	return out
}
