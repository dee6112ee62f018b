// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/introspect"
	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
)

// methods is what package signal exports on the same path and interface.
type methods struct{ called chan string }

func (m methods) RequireReboot(id, reason string) *dbus.Error {
	m.called <- id + " " + reason
	return nil
}

func (m methods) ClearReboot(id string) *dbus.Error { m.called <- id; return nil }

// serve runs an agent's object on d.
func serve(t *testing.T, d *bustest.Daemon) (*Reporter, methods) {
	t.Helper()
	b := bus.New(bus.Options{Address: d.Address, Logger: slog.New(slog.DiscardHandler)})
	r := New("node-1", "1.0.0")
	r.Add(NewObject(b, r.Latest))
	m := methods{make(chan string, 1)}
	b.Serve(BusName, func(conn *dbus.Conn) error { return conn.Export(m, ObjectPath, ObjectInterface) })
	bustest.Run(t, b)
	run(t, r.Run)
	bustest.Eventually(t, "the agent has its name",
		func() bool { return b.Connected() && b.Serving(BusName) == nil && owned(d) })
	return r, m
}

func owned(d *bustest.Daemon) bool {
	conn, err := dbus.Connect(d.Address)
	if err != nil {
		return false
	}
	defer conn.Close()
	var has bool
	return conn.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, BusName).Store(&has) == nil && has
}

// run runs f until the test ends.
func run(t *testing.T, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { f(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
}

// reader is a bus of the command line.
func reader(t *testing.T, d *bustest.Daemon) *bus.Bus {
	t.Helper()
	b := bus.New(bus.Options{Address: d.Address, Logger: slog.New(slog.DiscardHandler)})
	bustest.Run(t, b)
	bustest.Eventually(t, "the reader is connected", b.Connected)
	return b
}

func TestTheObjectShowsTheUpdate(t *testing.T) {
	t.Parallel()
	d := bustest.Start(t)
	r, m := serve(t, d)
	r.Update(full())
	object := d.Connect().Object(BusName, ObjectPath)

	call := object.Call(propertiesInterface+".GetAll", 0, ObjectInterface)
	if call.Err != nil {
		t.Fatal(call.Err)
	}
	all := call.Body[0].(map[string]dbus.Variant) // as it came: Store loses the types inside the variants
	want := map[string]string{
		"Version": `"1.0.0"`, "Node": `"node-1"`, "Phase": `"Draining"`,
		"Why":   `"2 pods left: PodDisruptionBudget default/web allows no disruption"`,
		"Until": "@x 1772503230000000", "Since": "@x 1772502960000000", "Required": `"required"`,
		"Reasons": `[["file:/run/reboot-required", "linux-image-6.12.48-amd64", "package linux-image-6.12.48-amd64"], ` +
			`["request", "libc6", ""]]`,
		"Sources": `[["file:/run/reboot-required", "required", "", ""], ["request", "required", "", ""], ` +
			`["update-engine", "not-required", "service absent", ""], ["vendor", "unknown", "", "no answer within 10s"]]`,
		"Tainted": "true", "Cordoned": "true", "Slot": `"slot-default-0"`,
		"WindowOpen": "true", "WindowOpens": "@x 0", "WindowCloses": "@x 1772510400000000",
		"Blocked": `["gate: ALERTS has 1 result", "gate: a pod", "outside the maintenance windows"]`, "LastReboot": "@x 1770688800000000",
		"Failure": `"draining took longer than timeout = 20m0s"`, "Api": `"read"`,
	}
	var document string
	if err := all[jsonProperty].Store(&document); err != nil {
		t.Error(err)
	}
	delete(all, jsonProperty)
	types := map[string]string{}
	got := map[string]string{}
	for name, v := range all {
		got[name], types[name] = v.String(), v.Signature().String()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if types["Reasons"] != "a(sss)" || types["Sources"] != "a(ssss)" || types["Until"] != "x" || types["Blocked"] != "as" {
		t.Errorf("types: %v", types)
	}
	var u Update
	if err := json.Unmarshal([]byte(document), &u); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(full().bounded(), u); diff != "" {
		t.Error(diff)
	}

	// The methods of the same interface work beside the properties.
	if err := object.Call(ObjectInterface+".RequireReboot", 0, "libc6", "updated").Err; err != nil ||
		<-m.called != "libc6 updated" {
		t.Errorf("RequireReboot: %v", err)
	}
	for what, err := range map[string]error{
		"Set": object.Call(propertiesInterface+".Set", 0, ObjectInterface, "Phase",
			dbus.MakeVariant("Idle")).Err,
		"unknown property":  object.Call(propertiesInterface+".Get", 0, ObjectInterface, "Password").Err,
		"unknown interface": object.Call(propertiesInterface+".GetAll", 0, "com.example").Err,
		"wrong types":       object.Call(propertiesInterface+".Get", 0, 7, 8).Err,
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func TestTheObjectDescribesItself(t *testing.T) {
	t.Parallel()
	d := bustest.Start(t)
	serve(t, d)
	var text string
	if err := d.Connect().Object(BusName, ObjectPath).Call(introspectInterface+".Introspect", 0).Store(&text); err != nil {
		t.Fatal(err)
	}
	var node introspect.Node
	if err := xml.Unmarshal([]byte(text), &node); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(node.Interfaces, func(i introspect.Interface) bool { return i.Name == ObjectInterface })
	if i < 0 || len(node.Interfaces[i].Methods) != 2 || len(node.Interfaces[i].Properties) != len(properties) {
		t.Fatalf("got %s", text)
	}
	for _, p := range node.Interfaces[i].Properties {
		if p.Access != "read" || p.Type == "" {
			t.Errorf("property %+v", p)
		}
	}
}

func TestEveryChangeIsAnnouncedInOneSignal(t *testing.T) {
	t.Parallel()
	d := bustest.Start(t)
	r, _ := serve(t, d)
	conn := d.Connect()
	if err := conn.AddMatchSignal(dbus.WithMatchSender(BusName),
		dbus.WithMatchInterface(propertiesInterface)); err != nil {
		t.Fatal(err)
	}
	signals := make(chan *dbus.Signal, 16)
	conn.Signal(signals)
	u := full()
	r.Update(u)
	<-signals
	u.Requests++ // counters are no news
	r.Update(u)
	u.Phase, u.Why = "Preparing", "the target runs"
	r.Update(u)

	s := <-signals
	changed, _ := s.Body[1].(map[string]dbus.Variant)
	names := []string{}
	for name := range changed {
		names = append(names, name)
	}
	slices.Sort(names)
	if s.Body[0] != ObjectInterface || !slices.Equal(names, []string{"Phase", "Why"}) ||
		changed["Phase"].Value() != "Preparing" ||
		!slices.Equal(s.Body[2].([]string), []string{jsonProperty}) {
		t.Errorf("got %v", s.Body)
	}
}

func TestTheObjectReturnsWithTheBus(t *testing.T) {
	t.Parallel()
	d := bustest.Start(t)
	r, _ := serve(t, d)
	d.Kill()
	u := full()
	u.Phase = "Preparing"
	r.Update(u) // while the bus is away
	d.Restart()
	bustest.Eventually(t, "the agent has its name again", func() bool { return owned(d) })
	got, err := ReadObject(t.Context(), reader(t, d))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(u.bounded(), got); diff != "" {
		t.Error(diff)
	}
	u.Phase = "Rebooting"
	r.Update(u)
	bustest.Eventually(t, "changes are shown", func() bool {
		got, err := ReadObject(t.Context(), reader(t, d))
		return err == nil && got.Phase == "Rebooting"
	})
}

type answer struct{ value any }

func (a answer) Get(context.Context, string, string, string, string) (dbus.Variant, error) {
	return dbus.MakeVariant(a.value), nil
}

func TestAnUnreadableAnswerIsAnError(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{
		"a number": 7, "no JSON": "{", "another JSON": `{"reasons": 7}`, "too long": string(make([]byte, maxDocument+1)),
	} {
		if u, err := ReadObject(t.Context(), answer{value}); err == nil {
			t.Errorf("%s: read as %+v", name, u)
		}
	}
	u, err := ReadObject(t.Context(), answer{`{"phase": "New\u001b[2J", "required": "perhaps", "unknownKey": 1}`})
	if err != nil || u.Phase != "New [2J" || u.Level.String() != "unknown" {
		t.Errorf("of another version: %+v, %v", u, err)
	}
}

func TestAnAbsentAgentIsTold(t *testing.T) {
	t.Parallel()
	d := bustest.Start(t)
	_, err := ReadObject(t.Context(), reader(t, d))
	var answer dbus.Error
	if !errors.As(err, &answer) || answer.Name != "org.freedesktop.DBus.Error.NameHasNoOwner" {
		t.Errorf("got %v", err)
	}
}

func FuzzReadObject(f *testing.F) {
	document, err := json.Marshal(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(document))
	f.Add(`{"lastReboot":null,"failure":{"at":"0001-01-01T00:00:00Z"}}`)
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ReadObject(t.Context(), answer{s})
		if err != nil {
			return
		}
		_ = Text(u, night)
		if _, err := json.Marshal(u); err != nil {
			t.Error(err)
		}
	})
}
