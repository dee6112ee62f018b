// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"maps"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"
)

// Reply is how a faked method answers. The zero value answers normally.
type Reply struct {
	Error  *dbus.Error // refuse with this
	Hang   bool        // never answer
	HangUp bool        // leave the bus after receiving the call, without an answer
}

// Refuse returns the Reply with a named D-Bus error.
func Refuse(name, message string) Reply { return Reply{Error: dbus.NewError(name, []any{message})} }

// Call is one received method call.
type Call struct {
	Member string
	Args   []any
}

// Service is a faked service: any objects with properties, programmable methods, and signals. The concrete fakes embed
// it; tests of the general sources use it directly.
type Service struct {
	d    *Daemon
	name string

	mu      sync.Mutex
	conn    *dbus.Conn
	props   map[string]map[string]map[string]dbus.Variant // path, interface, property
	methods map[string]map[string]map[string]any          // path, interface, method
	replies map[string]Reply
	calls   []Call
	silent  bool // Emit is swallowed: systemd1 without a subscriber
	hung    chan struct{}
}

// NewService connects a service that owns name.
func NewService(d *Daemon, name string) *Service {
	s := newService(d, name)
	s.Connect()
	return s
}

func newService(d *Daemon, name string) *Service {
	s := &Service{
		d: d, name: name,
		props:   map[string]map[string]map[string]dbus.Variant{},
		methods: map[string]map[string]map[string]any{},
		replies: map[string]Reply{},
		hung:    make(chan struct{}),
	}
	d.t.Cleanup(func() { close(s.hung) })
	return s
}

// Connect joins the bus under a new unique name, with all state kept.
func (s *Service) Connect() {
	s.d.t.Helper()
	s.Disconnect()
	conn := s.d.Connect()
	s.mu.Lock()
	s.conn = conn
	paths := map[string]bool{}
	for path := range s.props {
		paths[path] = true
	}
	for path := range s.methods {
		paths[path] = true
	}
	s.mu.Unlock()
	for path := range paths {
		s.export(conn, path)
	}
	reply, err := conn.RequestName(s.name, dbus.NameFlagDoNotQueue)
	if err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		s.d.t.Fatalf("owning %s: %v %v", s.name, reply, err)
	}
}

// Disconnect leaves the bus.
func (s *Service) Disconnect() {
	s.mu.Lock()
	conn := s.conn
	s.conn = nil
	s.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// On programs the answer of a method, for all its objects.
func (s *Service) On(member string, r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies[member] = r
}

// Calls returns the calls of one method so far, or of all for "".
func (s *Service) Calls(member string) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Call
	for _, c := range s.calls {
		if member == "" || c.Member == member {
			out = append(out, c)
		}
	}
	return out
}

// SetProperty sets a property without a signal.
func (s *Service) SetProperty(path, iface, property string, value any) {
	s.mu.Lock()
	fresh := s.props[path] == nil && s.methods[path] == nil
	if s.props[path] == nil {
		s.props[path] = map[string]map[string]dbus.Variant{}
	}
	if s.props[path][iface] == nil {
		s.props[path][iface] = map[string]dbus.Variant{}
	}
	s.props[path][iface][property] = dbus.MakeVariant(value)
	conn := s.conn
	s.mu.Unlock()
	if fresh && conn != nil {
		s.export(conn, path)
	}
}

// ChangeProperty sets a property and emits PropertiesChanged.
func (s *Service) ChangeProperty(path, iface, property string, value any) {
	s.SetProperty(path, iface, property, value)
	s.Emit(path, "org.freedesktop.DBus.Properties.PropertiesChanged",
		iface, map[string]dbus.Variant{property: dbus.MakeVariant(value)}, []string{})
}

// Emit broadcasts a signal; without a connection it does nothing.
func (s *Service) Emit(path, name string, args ...any) {
	s.d.t.Helper()
	s.mu.Lock()
	conn, silent := s.conn, s.silent
	s.mu.Unlock()
	if conn == nil || silent {
		return
	}
	if err := conn.Emit(dbus.ObjectPath(path), name, args...); err != nil {
		s.d.t.Logf("emitting %s: %v", name, err)
	}
}

// handle adds methods to an object before Connect.
func (s *Service) handle(path, iface string, methods map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.methods[path] == nil {
		s.methods[path] = map[string]map[string]any{}
	}
	s.methods[path][iface] = methods
}

func (s *Service) export(conn *dbus.Conn, path string) {
	s.mu.Lock()
	ifaces := maps.Clone(s.methods[path])
	s.mu.Unlock()
	for iface, methods := range ifaces {
		if err := conn.ExportMethodTable(methods, dbus.ObjectPath(path), iface); err != nil {
			s.d.t.Fatal(err)
		}
	}
	get := func(iface, property string) (dbus.Variant, *dbus.Error) {
		if err := s.called("Get", iface, property); err != nil {
			return dbus.Variant{}, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		v, ok := s.props[path][iface][property]
		if !ok {
			return v, dbus.NewError("org.freedesktop.DBus.Error.UnknownProperty", []any{"no property " + property})
		}
		return v, nil
	}
	table := map[string]any{"Get": get}
	if err := conn.ExportMethodTable(table, dbus.ObjectPath(path), "org.freedesktop.DBus.Properties"); err != nil {
		s.d.t.Fatal(err)
	}
}

// called records a call and plays the programmed answer.
func (s *Service) called(member string, args ...any) *dbus.Error {
	s.mu.Lock()
	s.calls = append(s.calls, Call{member, args})
	r := s.replies[member]
	s.mu.Unlock()
	switch {
	case r.Hang:
		<-s.hung
	case r.HangUp:
		s.Disconnect()
	}
	return r.Error
}

func split(name string) (iface, member string) {
	i := strings.LastIndexByte(name, '.')
	return name[:i], name[i+1:]
}
