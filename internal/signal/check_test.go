// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const checkOfTest = "kured-agent-check@mine.service"

var mine = map[string]any{"name": "mine"}

// startCheck runs the source against a faked systemd that knows its unit.
func startCheck(
	t *testing.T, make func(d *bustest.Daemon) *bustest.FakeCheck, options map[string]any,
) (*bustest.FakeCheck, *probe) {
	t.Helper()
	d := bustest.Start(t)
	fake := make(d)
	return fake, start(t, Env{Bus: startBus(t, d)}, "check", options)
}

func thatEnds(run bustest.CheckRun) func(d *bustest.Daemon) *bustest.FakeCheck {
	return func(d *bustest.Daemon) *bustest.FakeCheck {
		f := bustest.NewCheck(d, checkOfTest)
		f.SetRun(run)
		return f
	}
}

// answered is any state but the first one, which says that there is none.
func answered(s State) bool { return s.Level != plan.Unknown && s.Level != -1 || s.Err != nil }

func TestOnlyANamedExitCodeIsAnAnswer(t *testing.T) {
	t.Parallel()
	type run = bustest.CheckRun
	const unknown, no, yes = plan.Unknown, plan.NotRequired, plan.Required
	sentinel := map[string]any{"name": "mine", "required": []any{int64(0), int64(5)}, "not_required": []any{int64(1)}}
	for name, c := range map[string]struct {
		run     run
		options map[string]any
		level   plan.Level
		told    string // part of the error
	}{
		"zypper's yes":              {run{Code: 102, Result: "success"}, mine, yes, ""},
		"yes as a failure":          {run{Code: 102}, mine, yes, ""},
		"no":                        {run{}, mine, no, ""},
		"any failure":               {run{Code: 1}, mine, unknown, "exited with 1"},
		"wrong usage":               {run{Code: 2}, mine, unknown, "exited with 2"},
		"not executable":            {run{Code: 126}, mine, unknown, "exited with 126"},
		"not found by the shell":    {run{Code: 127}, mine, unknown, "exited with 127"},
		"not found by systemd":      {run{Code: 203}, mine, unknown, "exited with 203"},
		"a sentinel that says yes":  {run{}, sentinel, yes, ""},
		"another of its codes":      {run{Code: 5}, sentinel, yes, ""},
		"a sentinel that says no":   {run{Code: 1}, sentinel, no, ""},
		"a sentinel that is gone":   {run{Code: 127}, sentinel, unknown, "exited with 127"},
		"102 where 0 is yes":        {run{Code: 102}, sentinel, unknown, "exited with 102"},
		"killed":                    {run{Signal: 9}, mine, unknown, "killed by signal 9"},
		"killed by 102":             {run{Signal: 102}, mine, unknown, "killed by signal 102"},
		"too slow":                  {run{Signal: 15, Result: "timeout"}, mine, unknown, `"timeout"`},
		"too slow, then yes":        {run{Code: 102, Result: "timeout"}, mine, unknown, `"timeout"`},
		"before the program":        {run{NoProgram: true, Result: "exit-code"}, mine, unknown, "run its program"},
		"before a sentinel":         {run{NoProgram: true, Result: "resources"}, sentinel, unknown, `"resources"`},
		"stopped":                   {run{Code: 102, Job: "canceled"}, mine, unknown, "was stopped"},
		"a dependency failed":       {run{Code: 102, Job: "dependency"}, mine, unknown, `"dependency"`},
		"an assertion failed":       {run{Code: 102, Job: "assert"}, mine, unknown, `"assert"`},
		"a condition failed":        {run{NoCondition: true}, mine, no, ""},
		"a sentinel's condition":    {run{NoCondition: true}, sentinel, no, ""},
		"a condition by a program":  {run{Result: "exec-condition", NoProgram: true}, mine, no, ""},
		"a sentinel's, by program":  {run{Result: "exec-condition", NoProgram: true}, sentinel, no, ""},
		"a result of no known name": {run{Code: 0, Result: "protocol"}, mine, unknown, `"protocol"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, p := startCheck(t, thatEnds(c.run), c.options)
			s := p.shows("an answer", answered)
			if s.Level != c.level || !strings.Contains(message(s.Err), c.told) {
				t.Errorf("state %+v, want level %v and %q", s, c.level, c.told)
			}
			if s.Err != nil && !strings.Contains(s.Err.Error(), checkOfTest) {
				t.Errorf("the unit is not named: %v", s.Err)
			}
			absent := c.run.NoCondition || c.run.Result == "exec-condition"
			if absent != strings.Contains(s.Note, errNoCheck.Error()) {
				t.Errorf("note %q", s.Note)
			}
			if want := []string{"mine"}; s.Level == plan.Required && strings.Join(ids(s), " ") != want[0] {
				t.Errorf("reasons %v, want %v", ids(s), want)
			}
		})
	}
}

func TestAUnitThatCannotBeStartedIsToldAndNeverRequired(t *testing.T) {
	t.Parallel()
	load := func(state string) func(*bustest.FakeCheck) { return func(f *bustest.FakeCheck) { f.SetLoad(state) } }
	const bus1 = "org.freedesktop.DBus.Error."
	refuse := func(name string) func(*bustest.FakeCheck) {
		return func(f *bustest.FakeCheck) { f.On("StartUnit", bustest.Refuse(name, "no")) }
	}
	for name, c := range map[string]struct {
		prepare func(*bustest.FakeCheck)
		level   plan.Level
		told    string
	}{
		"not installed":       {load("not-found"), plan.NotRequired, "not-found"},
		"masked":              {load("masked"), plan.NotRequired, "masked"},
		"without ExecStart=":  {load("bad-setting"), plan.Unknown, "ExecStart="},
		"removed meanwhile":   {refuse("org.freedesktop.systemd1.NoSuchUnit"), plan.NotRequired, "gone"},
		"denied":              {refuse(bus1 + "AccessDenied"), plan.Unknown, "polkit rule"},
		"denied without root": {refuse(bus1 + "InteractiveAuthorizationRequired"), plan.Unknown, "polkit rule"},
		"any other refusal":   {refuse("org.freedesktop.systemd1.LoadFailed"), plan.Unknown, "LoadFailed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake, p := startCheck(t, func(d *bustest.Daemon) *bustest.FakeCheck {
				f := bustest.NewCheck(d, checkOfTest)
				f.SetRun(bustest.CheckRun{Code: 102})
				c.prepare(f)
				return f
			}, mine)
			s := p.shows("an answer", answered)
			if s.Level != c.level || !strings.Contains(message(s.Err)+s.Note, c.told) {
				t.Errorf("state %+v, want level %v and %q", s, c.level, c.told)
			}
			if starts := len(fake.Calls("StartUnit")); strings.HasPrefix(c.told, "not-found") && starts != 0 {
				t.Errorf("%d starts of a unit that does not exist", starts)
			}
		})
	}
}

func TestOnlyThatOneUnitIsStarted(t *testing.T) {
	fake, p := startCheck(t, thatEnds(bustest.CheckRun{}), mine)
	p.becomes("an answer", plan.NotRequired)
	for _, call := range fake.Calls("StartUnit") {
		if call.Args[0] != checkOfTest || call.Args[1] != "replace" {
			t.Errorf("started %v", call.Args)
		}
	}
}

// The properties of a unit that has ended well are those of one that never ran, and of one that stays active those of
// its first run: neither is an answer to this question.
func TestAnEarlierResultIsNotTakenForThisOne(t *testing.T) {
	fake, p := startCheck(t, func(d *bustest.Daemon) *bustest.FakeCheck {
		f := bustest.NewCheck(d, checkOfTest)
		f.SetRun(bustest.CheckRun{Code: 102, Result: "timeout"}) // stays loaded, with its code
		f.Begin()
		f.Stay()
		return f
	}, mine)
	s := p.shows("an answer", answered)
	if s.Level != plan.Unknown || !strings.Contains(message(s.Err), checkOfTest) {
		t.Errorf("state %+v after %d starts", s, len(fake.Calls("StartUnit")))
	}
}

func TestARunOfSomebodyElseIsWaitedForAndThenFollowedByOurOwn(t *testing.T) {
	fake, p := startCheck(t, func(d *bustest.Daemon) *bustest.FakeCheck {
		f := bustest.NewCheck(d, checkOfTest)
		f.Hold(true)
		f.Begin()
		return f
	}, mine)
	starts := func(n int) func() bool { return func() bool { return len(fake.Calls("StartUnit")) == n } }
	bustest.Eventually(t, "the start that joins the run", starts(1))
	fake.End() // of a run that began before the question: its "no" is not taken
	bustest.Eventually(t, "a start of our own", starts(2))
	if s := p.state(); answered(s) {
		t.Errorf("answered %+v by a run that began before", s)
	}
	fake.SetRun(bustest.CheckRun{Code: 102})
	fake.End()
	p.becomes("our own run", plan.Required)
}

func TestACheckThatLosesTheBusIsRunAgain(t *testing.T) {
	d := bustest.Start(t)
	fake := bustest.NewCheck(d, checkOfTest)
	fake.Hold(true)
	p := start(t, Env{Bus: startBus(t, d)}, "check", mine)
	bustest.Eventually(t, "it runs", func() bool { return len(fake.Calls("StartUnit")) == 1 })
	fake.Disconnect()
	d.Restart()
	fake.End() // nobody hears how
	fake.SetRun(bustest.CheckRun{Code: 102})
	fake.Hold(false)
	fake.Connect()
	p.becomes("after the bus came back", plan.Required)
}

func TestACheckOutlivesSystemdLeavingTheBus(t *testing.T) {
	fake, p := startCheck(t, func(d *bustest.Daemon) *bustest.FakeCheck {
		f := bustest.NewCheck(d, checkOfTest)
		f.SetRun(bustest.CheckRun{Code: 102})
		f.Hold(true)
		return f
	}, mine)
	bustest.Eventually(t, "it runs", func() bool { return len(fake.Calls("StartUnit")) == 1 })
	fake.Connect() // daemon-reexec: the run goes on, the subscribers are forgotten
	bustest.Eventually(t, "a new subscription", func() bool { return len(fake.Calls("Subscribe")) >= 2 })
	// The answer to the start may be lost as well: then the check joins the run, and starts its own after it.
	bustest.Eventually(t, "the end of a run", func() bool {
		fake.End()
		return p.state().Level == plan.Required
	})
}

func TestASystemdThatIsAwayIsAskedOnceItIsBack(t *testing.T) {
	fake, p := startCheck(t, func(d *bustest.Daemon) *bustest.FakeCheck {
		f := thatEnds(bustest.CheckRun{Code: 102})(d)
		f.Disconnect()
		return f
	}, mine)
	if s := p.shows("it is away", answered); s.Level != plan.Unknown {
		t.Errorf("state %+v", s)
	}
	fake.Connect()
	p.becomes("it is back", plan.Required)
}

func TestForgedEndsOfACheckAreDropped(t *testing.T) {
	d := bustest.Start(t)
	fake := bustest.NewCheck(d, checkOfTest)
	fake.Hold(true)
	p := start(t, Env{Bus: startBus(t, d)}, "check", mine)
	bustest.Eventually(t, "it runs", func() bool { return len(fake.Calls("StartUnit")) == 1 })
	stranger := bustest.NewStranger(d)
	unit := string(bustest.UnitPath(checkOfTest))
	stranger.Forge(unit, "org.freedesktop.DBus.Properties.PropertiesChanged", pid1Service, map[string]dbus.Variant{
		"ExecMainStatus": dbus.MakeVariant(int32(102)), "ExecMainCode": dbus.MakeVariant(int32(1)),
	}, []string{})
	stranger.Forge(pid1Path, pid1Manager+".JobRemoved", uint32(1), dbus.ObjectPath(pid1Path+"/job/1"), checkOfTest, "done")
	// The owner itself sends nonsense, and the end of another unit.
	fake.Emit(unit, "org.freedesktop.DBus.Properties.PropertiesChanged", pid1Service)
	fake.Emit(unit, "org.freedesktop.DBus.Properties.PropertiesChanged", pid1Service, "x", "y")
	fake.Emit(unit, "org.freedesktop.DBus.Properties.PropertiesChanged", pid1Service,
		map[string]dbus.Variant{"ExecMainStatus": dbus.MakeVariant("102")}, []string{})
	fake.Emit(pid1Path, pid1Manager+".JobRemoved")
	fake.Emit(pid1Path, pid1Manager+".JobRemoved", "a", "b", "c", "d")
	fake.Emit(pid1Path, pid1Manager+".JobRemoved", uint32(1), dbus.ObjectPath(pid1Path+"/job/1"), "other.service", "done")
	fake.End()
	if s := p.shows("an answer", answered); s.Level != plan.NotRequired {
		t.Errorf("state %+v", s)
	}
}

func TestTheOptionsOfACheckAreChecked(t *testing.T) {
	with := func(key string, v any) map[string]any { return map[string]any{"name": "mine", key: v} }
	ints := func(list ...any) []any { return list }
	for name, c := range map[string]struct {
		options map[string]any
		want    string // "key: part of the message", empty: fine
	}{
		"the name alone": {mine, ""},
		"all of them": {map[string]any{
			"name": "a-b_2", "every": "90m", "required": ints(int64(1), int64(100)), "watch": "/x",
		}, ""},
		"no name":         {map[string]any{}, `: needs the key "name"`},
		"an empty name":   {map[string]any{"name": ""}, "name: not the name of a check"},
		"a unit":          {map[string]any{"name": "x.service"}, "name: not the name of a check"},
		"a way out":       {map[string]any{"name": "x/../y"}, "name: not the name of a check"},
		"a specifier":     {map[string]any{"name": "%i"}, "name: not the name of a check"},
		"a bare number":   {with("every", int64(60)), "every: is an integer"},
		"no duration":     {with("every", "often"), "every: not a duration"},
		"too often":       {with("every", "59s"), "every: less than 1m"},
		"a single code":   {with("required", int64(1)), "required: is an integer"},
		"no code":         {with("required", ints()), "required: is empty"},
		"a word":          {with("required", ints("1")), "required: holds a string"},
		"not found":       {with("required", ints(int64(127))), "required: 127 is not between"},
		"systemd's own":   {with("not_required", ints(int64(203))), "not_required: 203 is not between"},
		"negative":        {with("required", ints(int64(-1))), "required: -1 is not between"},
		"both by default": {with("required", ints(int64(0))), "required: 0 is also in not_required"},
		"both": {map[string]any{
			"name": "m", "required": ints(int64(3)), "not_required": ints(int64(3)),
		}, "required: 3 is also"},
		"a relative watch":  {with("watch", "var/lib/rpm"), "watch: not an absolute path"},
		"the other default": {with("not_required", ints(int64(102))), "required: 102 is also"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Check("check", c.options)
			if c.want == "" {
				if len(got) != 0 {
					t.Errorf("got %v", got)
				}
				return
			}
			key, part, _ := strings.Cut(c.want, ": ")
			if len(got) != 1 || got[0].Key != key || !strings.Contains(got[0].Message, part) {
				t.Errorf("got %v, want %q", got, c.want)
			}
		})
	}
}

// waiting runs the wait after an answer and returns how long it took.
func waiting(t *testing.T, c *check, before uint64, failed, unasked bool) <-chan time.Duration {
	took := make(chan time.Duration, 1)
	began := time.Now()
	go func() {
		if err := c.wait(t.Context(), before, failed, unasked); err == nil {
			took <- time.Since(began)
		}
	}()
	return took
}

func TestACheckRunsAgainAfterItsTimeAndSoonerAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCheck(map[string]any{"name": "mine", "every": "6h"}, Env{Bus: bus.New(bus.Options{})})
		if took := <-waiting(t, c, 0, false, false); took != 6*time.Hour {
			t.Errorf("after an answer: %v", took)
		}
		if took := <-waiting(t, c, 0, true, false); took != checkAgain {
			t.Errorf("after a failure: %v", took)
		}
		c.unit.changed.poke()
		if took := <-waiting(t, c, 0, false, false); took != 6*time.Hour {
			t.Errorf("a change of the connection brought an answer that stands into question: %v", took)
		}
		if took := <-waiting(t, c, 0, true, true); took != 0 {
			t.Errorf("after a change of the connection: %v", took)
		}
	})
}

func TestAChangeInTheWatchedDirectoryRunsTheCheckOnceItCameToRest(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "var/lib/rpm")
	write(t, filepath.Join(dir, "rpmdb.sqlite"), "1")
	synctest.Test(t, func(t *testing.T) {
		options := map[string]any{"name": "mine", "every": "6h", "watch": "/var/lib/rpm"}
		c := newCheck(options, Env{Bus: bus.New(bus.Options{}), Root: root})
		before := fingerprint(c.dir)
		took := waiting(t, c, before, false, false)
		time.Sleep(90 * time.Second)
		write(t, filepath.Join(dir, "rpmdb.sqlite-wal"), "a reader's")
		write(t, filepath.Join(dir, ".rpm.lock"), "")
		time.Sleep(10 * time.Minute)
		write(t, filepath.Join(dir, "rpmdb.sqlite"), "12")
		time.Sleep(time.Minute)
		write(t, filepath.Join(dir, "rpmdb.sqlite"), "123") // the transaction goes on
		if took := <-took; took != 14*time.Minute {
			t.Errorf("it ran after %v", took)
		}
	})
}

func TestAFingerprintOfADirectoryThatIsMissingIsThatOfNothing(t *testing.T) {
	dir := t.TempDir()
	if fingerprint(filepath.Join(dir, "missing")) != 0 || fingerprint("") != 0 {
		t.Error("a missing directory has a fingerprint")
	}
	empty := fingerprint(dir)
	write(t, filepath.Join(dir, "Packages"), "")
	if fingerprint(dir) == empty {
		t.Error("a new file changes nothing")
	}
}

func TestACheckIsToldAsUnansweredUntilItHasRun(t *testing.T) {
	fake, p := startCheck(t, func(d *bustest.Daemon) *bustest.FakeCheck {
		f := bustest.NewCheck(d, checkOfTest)
		f.Hold(true)
		return f
	}, mine)
	s := p.shows("at once", func(s State) bool { return s.Level == plan.Unknown })
	if s.Err != nil || s.Note == "" {
		t.Errorf("state %+v", s)
	}
	bustest.Eventually(t, "it runs", func() bool { return len(fake.Calls("StartUnit")) == 1 })
	fake.End()
	p.becomes("its answer", plan.NotRequired)
}

func TestTheDnfCheckRestsWhereThereIsNoDnfAndOnImages(t *testing.T) {
	root := t.TempDir()
	installed := kinds["check"].installed
	if installed(root) {
		t.Error("it runs without dnf")
	}
	for _, program := range []string{"dnf", "dnf5"} {
		write(t, filepath.Join(root, "usr/bin", program), "")
		if !installed(root) {
			t.Errorf("it rests with %s", program)
		}
		if program == "dnf" {
			_ = os.Remove(filepath.Join(root, "usr/bin/dnf"))
		}
	}
	write(t, filepath.Join(root, "run/ostree-booted"), "")
	if installed(root) {
		t.Error("it runs on a host that is updated by images")
	}
}

func TestACheckEndsWithItsContext(t *testing.T) {
	d := bustest.Start(t)
	fake := bustest.NewCheck(d, checkOfTest)
	fake.Hold(true)
	ctx, cancel := context.WithCancel(t.Context())
	c := newCheck(mine, Env{Bus: startBus(t, d)})
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx, func(State) {}) }()
	bustest.Eventually(t, "it runs", func() bool { return len(fake.Calls("StartUnit")) == 1 })
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Run does not end")
	}
}

func TestAProgramThatDidNotRunDoesNotAnswerWithItsLastCode(t *testing.T) {
	_, p := startCheck(t, func(d *bustest.Daemon) *bustest.FakeCheck {
		f := bustest.NewCheck(d, checkOfTest)
		f.SetRun(bustest.CheckRun{Code: 5}) // failed, so it stays loaded with its code
		f.Begin()
		f.SetRun(bustest.CheckRun{NoProgram: true, Result: "exit-code"})
		return f
	}, map[string]any{"name": "mine", "required": []any{int64(5)}})
	if s := p.shows("an answer", answered); !strings.Contains(message(s.Err), "run its program") {
		t.Errorf("state %+v", s)
	}
}

func FuzzEnding(f *testing.F) {
	f.Add(pid1Service, "success", int32(1), int32(102), uint64(1001), true, "mine.service", "done")
	f.Add("", "timeout", int32(2), int32(15), uint64(0), false, checkOfTest, "failed")
	f.Fuzz(func(t *testing.T, iface, result string, cause, value int32, started uint64, condition bool,
		unit, job string) {
		var end ending
		end.take([]any{iface, map[string]dbus.Variant{
			"Result":                          dbus.MakeVariant(result),
			"ExecMainCode":                    dbus.MakeVariant(cause),
			"ExecMainStatus":                  dbus.MakeVariant(value),
			"ConditionResult":                 dbus.MakeVariant(condition),
			"ExecMainStartTimestampMonotonic": dbus.MakeVariant(started),
			"InvocationID":                    dbus.MakeVariant(unit),
		}})
		wrong := map[string]dbus.Variant{"Result": dbus.MakeVariant(value)}
		for _, body := range [][]any{nil, {iface}, {iface, result}, {result, wrong}} {
			end.take(body)
		}
		_, end.job, _ = parseJobRemoved([]any{uint32(1), dbus.ObjectPath("/x"), unit, job}, unit)
		code, instead := end.code()
		if instead != "" {
			return
		}
		if end.job != job || !end.ran() || cause != cldExited || code != value || started == 0 ||
			result != "success" && result != "exit-code" {
			t.Errorf("%+v is taken for an answer", end)
		}
		for _, body := range [][]any{
			nil, {unit}, {1, 2, unit, job}, {uint32(1), "/x", unit, job}, {uint32(1), dbus.ObjectPath("/x"), unit, 5},
		} {
			if _, _, ok := parseJobRemoved(body, unit); ok {
				t.Errorf("%v is taken for the end of a job", body)
			}
		}
	})
}
