// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

// The agent's object on the system bus. Package signal exports the methods of the same interface.
const (
	BusName         = "org.kured.Agent1"
	ObjectPath      = "/org/kured/Agent1"
	ObjectInterface = "org.kured.Agent1"

	propertiesInterface = "org.freedesktop.DBus.Properties"
	introspectInterface = "org.freedesktop.DBus.Introspectable"

	maxDocument = 512 << 10
)

// server is what the object needs of bus.Bus: export runs on every (re)connect.
type server interface {
	Serve(name string, export func(*dbus.Conn) error) (stop func())
}

// getter is what a reader of the object needs of bus.Bus.
type getter interface {
	Get(ctx context.Context, dest, path, iface, property string) (dbus.Variant, error)
}

// Object shows the newest update as read-only properties and announces every change in one PropertiesChanged. It has
// its own Properties instead of godbus's because that one sends a signal for each property, so that a reader could see
// the new phase with the old reason.
type Object struct {
	latest func() Update
	wake   mailbox[struct{}]

	mu   sync.Mutex
	conn *dbus.Conn
	sent map[string]any // as announced on conn
}

// NewObject exports the object on every connection of the bus.
func NewObject(bus server, latest func() Update) *Object {
	o := &Object{latest: latest, wake: newMailbox[struct{}]()}
	bus.Serve(BusName, o.export) // also where no source of the configuration takes requests
	return o
}

func (o *Object) Take(_, _ Update) { o.wake.put(struct{}{}) }

// Run announces changes. The write to the bus may block, which is why Take does not do it.
func (o *Object) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
			o.announce()
		}
	}
}

func (o *Object) export(conn *dbus.Conn) error {
	methods := map[string]any{"Get": o.get, "GetAll": o.getAll, "Set": o.set}
	if err := conn.ExportMethodTable(methods, ObjectPath, propertiesInterface); err != nil {
		return fmt.Errorf("exporting %s on %s: %w", propertiesInterface, ObjectPath, err)
	}
	methods = map[string]any{"Introspect": func() (string, *dbus.Error) { return introspection(), nil }}
	if err := conn.ExportMethodTable(methods, ObjectPath, introspectInterface); err != nil {
		return fmt.Errorf("exporting %s on %s: %w", introspectInterface, ObjectPath, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conn, o.sent = conn, announced(o.latest())
	return nil
}

// announce errors are those of a lost connection: readers of the next one start afresh.
func (o *Object) announce() {
	conn, changed := o.changes()
	if conn == nil || len(changed) == 0 {
		return
	}
	_ = conn.Emit(ObjectPath, propertiesInterface+".PropertiesChanged", ObjectInterface, changed, []string{jsonProperty})
}

func (o *Object) changes() (*dbus.Conn, map[string]dbus.Variant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := announced(o.latest())
	changed := map[string]dbus.Variant{}
	for name, value := range now {
		if !reflect.DeepEqual(value, o.sent[name]) {
			changed[name] = dbus.MakeVariant(value)
		}
	}
	o.sent = now
	return o.conn, changed
}

func (o *Object) get(iface, name string) (dbus.Variant, *dbus.Error) {
	if iface != "" && iface != ObjectInterface {
		return dbus.Variant{}, unknownInterface()
	}
	for _, p := range properties {
		if p.name == name {
			return dbus.MakeVariant(p.value(o.latest())), nil
		}
	}
	return dbus.Variant{}, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{"no such property"})
}

func (o *Object) getAll(iface string) (map[string]dbus.Variant, *dbus.Error) {
	if iface != "" && iface != ObjectInterface {
		return nil, unknownInterface()
	}
	u := o.latest()
	all := make(map[string]dbus.Variant, len(properties))
	for _, p := range properties {
		all[p.name] = dbus.MakeVariant(p.value(u))
	}
	return all, nil
}

func (o *Object) set(_, _ string, _ dbus.Variant) *dbus.Error {
	return dbus.NewError("org.freedesktop.DBus.Error.PropertyReadOnly", []any{"every property is read-only"})
}

func unknownInterface() *dbus.Error {
	return dbus.NewError("org.freedesktop.DBus.Error.UnknownInterface", []any{"no such interface"})
}

const jsonProperty = "Json"

// property is one of the object's. All but Json are announced with their value.
type property struct {
	name  string
	value func(Update) any
}

type (
	reasonTriple struct{ Source, ID, Text string }
	sourceQuad   struct{ Name, Level, Note, Error string }
)

// Times are microseconds since the epoch, 0 if there is none.
var properties = []property{
	{"Version", func(u Update) any { return u.Version }},
	{"Node", func(u Update) any { return u.Node }},
	{"Phase", func(u Update) any { return u.Phase }},
	{"Why", func(u Update) any { return u.Why }},
	{"Until", func(u Update) any { return micros(u.Until) }},
	{"Since", func(u Update) any { return micros(u.Since) }},
	{"Required", func(u Update) any { return u.Level.String() }},
	{"Reasons", func(u Update) any {
		all := []reasonTriple{}
		for _, r := range u.Reasons {
			all = append(all, reasonTriple{r.Source, r.ID, r.Text})
		}
		return all
	}},
	{"Sources", func(u Update) any {
		all := []sourceQuad{}
		for _, s := range u.Sources {
			all = append(all, sourceQuad{s.Name, s.Level.String(), s.Note, s.Err})
		}
		return all
	}},
	{"Tainted", func(u Update) any { return u.Tainted }},
	{"Cordoned", func(u Update) any { return u.Cordoned }},
	{"Slot", func(u Update) any { return u.Slot }},
	{"WindowOpen", func(u Update) any { return u.Window.Open }},
	{"WindowOpens", func(u Update) any { return micros(u.Window.Opens) }},
	{"WindowCloses", func(u Update) any { return micros(u.Window.Closes) }},
	{"Blocked", func(u Update) any { return append([]string{}, u.blockedBy()...) }},
	{"LastReboot", func(u Update) any {
		if u.LastReboot == nil {
			return int64(0)
		}
		return micros(u.LastReboot.At)
	}},
	{"Failure", func(u Update) any {
		if u.Failure == nil {
			return ""
		}
		return u.Failure.Why
	}},
	{"Api", func(u Update) any { return u.API }},
	{jsonProperty, func(u Update) any {
		document, err := json.Marshal(u)
		if err != nil {
			return "{}"
		}
		return string(document)
	}},
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// announced is what PropertiesChanged carries. Json holds counters too, which are no news: it is only invalidated.
func announced(u Update) map[string]any {
	all := make(map[string]any, len(properties))
	for _, p := range properties {
		if p.name != jsonProperty {
			all[p.name] = p.value(u)
		}
	}
	return all
}

// introspection describes the whole object, the methods of package signal included.
var introspection = sync.OnceValue(func() string {
	var b strings.Builder
	b.WriteString(`<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">
<node>
 <interface name="org.freedesktop.DBus.Peer">
  <method name="Ping"/>
  <method name="GetMachineId"><arg name="machine_uuid" type="s" direction="out"/></method>
 </interface>
 <interface name="org.freedesktop.DBus.Introspectable">
  <method name="Introspect"><arg name="xml_data" type="s" direction="out"/></method>
 </interface>
 <interface name="org.freedesktop.DBus.Properties">
  <method name="Get">
   <arg name="interface" type="s" direction="in"/><arg name="name" type="s" direction="in"/>
   <arg name="value" type="v" direction="out"/>
  </method>
  <method name="GetAll">
   <arg name="interface" type="s" direction="in"/><arg name="values" type="a{sv}" direction="out"/>
  </method>
  <method name="Set">
   <arg name="interface" type="s" direction="in"/><arg name="name" type="s" direction="in"/>
   <arg name="value" type="v" direction="in"/>
  </method>
  <signal name="PropertiesChanged">
   <arg name="interface" type="s"/><arg name="changed" type="a{sv}"/><arg name="invalidated" type="as"/>
  </signal>
 </interface>
 <interface name="` + ObjectInterface + `">
  <method name="RequireReboot">
   <arg name="id" type="s" direction="in"/><arg name="reason" type="s" direction="in"/>
  </method>
  <method name="ClearReboot"><arg name="id" type="s" direction="in"/></method>
`)
	for _, p := range properties {
		emits := "true"
		if p.name == jsonProperty {
			emits = "invalidates"
		}
		fmt.Fprintf(&b, `  <property name="%s" type="%s" access="read">
   <annotation name="org.freedesktop.DBus.Property.EmitsChangedSignal" value="%s"/>
  </property>
`, p.name, dbus.SignatureOf(p.value(Update{})), emits)
	}
	b.WriteString(" </interface>\n</node>\n")
	return b.String()
})

// ReadObject asks the running agent. Errors: those of the call (dbus.Error when there is no agent), or an answer that
// is none.
func ReadObject(ctx context.Context, conn getter) (Update, error) {
	value, err := conn.Get(ctx, BusName, ObjectPath, ObjectInterface, jsonProperty)
	if err != nil {
		return Update{}, fmt.Errorf("asking the agent: %w", err)
	}
	document, ok := value.Value().(string)
	if !ok || len(document) > maxDocument {
		return Update{}, fmt.Errorf("asking the agent: property %s is no document (type %s)", jsonProperty, value.Signature())
	}
	var u Update
	if err := json.Unmarshal([]byte(document), &u); err != nil {
		return Update{}, fmt.Errorf("reading the agent's answer: %w", err)
	}
	return u.bounded(), nil
}
