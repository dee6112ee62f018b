// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	busName = "org.freedesktop.DBus"
	busPath = "/org/freedesktop/DBus"

	callTimeout = 10 * time.Second

	firstDelay = 200 * time.Millisecond
	lastDelay  = 30 * time.Second
	// A session shorter than this does not reset the delay: a bus that accepts and hangs up would otherwise be asked
	// five times a second.
	steady = 5 * time.Second

	// maxQueue bounds undelivered signals. Beyond it the newest body of a watch replaces the one before it.
	maxQueue = 256
)

var (
	// ErrNotConnected says that there is no connection: nothing was sent.
	ErrNotConnected = errors.New("not connected to the system bus")
	// ErrLost says that the connection broke between sending and the answer: the call may have been carried out.
	ErrLost = errors.New("the system bus connection was lost before the answer")
)

// Options of a Bus.
type Options struct {
	Address string // empty: DBUS_SYSTEM_BUS_ADDRESS, else the standard socket
	Logger  *slog.Logger
}

// Match selects signals. Sender is required: the well-known name whose owner may send them. Empty fields match all.
type Match struct {
	Sender, Path, Interface, Member, Arg0 string
}

// Signal is one received signal. Body comes from outside: check lengths and types.
type Signal struct {
	Path, Interface, Member string
	Body                    []any
}

// Call is one method call. Member is "interface.Method".
type Call struct {
	Destination, Path, Member string
	Args                      []any
	NoAutoStart               bool
	Timeout                   time.Duration // zero: 10 s
}

// Bus is the connection. Its methods may be called from any goroutine, also before Run.
type Bus struct {
	address string
	log     *slog.Logger

	ready   chan struct{}
	refused chan struct{} // closed once an attempt to connect failed before any stood
	wake    chan struct{} // capacity 1: the session has something to do
	dropped atomic.Uint64
	timeout time.Duration // of one call, and of connecting

	mu       sync.Mutex
	session  *session
	sessions int // so far
	watches  []*watch
	hooks    []*hook
	services []*service
}

type watch struct {
	match   Match
	handler func(Signal)
	stopped bool
}

type hook struct{ f func() }

type service struct {
	name   string
	export func(*dbus.Conn) error
	err    error // why the name is not ours
}

// New returns a Bus that does nothing until Run.
func New(opts Options) *Bus {
	if opts.Address == "" {
		opts.Address = os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	}
	if opts.Address == "" {
		opts.Address = "unix:path=/run/dbus/system_bus_socket"
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Bus{
		address: opts.Address,
		log:     opts.Logger,
		ready:   make(chan struct{}),
		refused: make(chan struct{}),
		wake:    make(chan struct{}, 1),
		timeout: callTimeout,
	}
}

// Run connects and reconnects until ctx ends. It calls the handlers and hooks.
func (b *Bus) Run(ctx context.Context) error {
	delay, reported := firstDelay, ""
	for {
		began := time.Now()
		err := b.runSession(ctx, func() { reported = "" })
		if ctx.Err() != nil {
			return nil
		}
		b.noteRefusal()
		if time.Since(began) > steady {
			delay = firstDelay
		}
		if msg := err.Error(); msg != reported {
			b.log.Warn("system bus away, retrying", "err", err)
			reported = msg
		}
		// Jitter, so that the agents of a machine room do not return in step after a common cause.
		wait := time.NewTimer(delay/2 + rand.N(delay/2+1))
		delay = min(2*delay, lastDelay)
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
	}
}

// noteRefusal tells those who wait for the first connection not to.
func (b *Bus) noteRefusal() {
	select {
	case <-b.ready:
	case <-b.refused:
	default:
		close(b.refused)
	}
}

// Await waits for the first connection, until an attempt failed, most has passed, or ctx ends. It returns whether the
// connection stands.
func (b *Bus) Await(ctx context.Context, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-b.ready:
	case <-b.refused:
	case <-timer.C:
	case <-ctx.Done():
	}
	return b.Connected()
}

// runSession connects once and serves until the connection ends. It returns why that was.
func (b *Bus) runSession(ctx context.Context, connected func()) error {
	s, err := b.connect(ctx)
	if err != nil {
		return err
	}
	b.setSession(s)
	defer func() {
		b.setSession(nil)
		_ = s.conn.Close()
		b.runHooks()
	}()
	if err := s.sync(ctx); err != nil {
		return err
	}
	connected()
	b.log.Info("connected to the system bus", "name", s.conn.Names()[0])
	s.takeChanged() // all of it is told now
	b.runHooks()
	select {
	case <-b.ready:
	default:
		close(b.ready)
	}
	return s.serve(ctx)
}

// Ready is closed once the first connection stands and OnChange has been called for it.
func (b *Bus) Ready() <-chan struct{} { return b.ready }

// Connected says whether a connection stands now.
func (b *Bus) Connected() bool { return b.current() != nil }

// Owner tells the owners of a watched name apart: it is another string for another process behind the name, and after
// every reconnect, since a new bus gives the same unique names again. Empty means that nobody is known to own it.
func (b *Bus) Owner(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session == nil || b.session.owners[name] == nil || b.session.owners[name].unique == "" {
		return ""
	}
	return fmt.Sprintf("%d %s", b.sessions, b.session.owners[name].unique)
}

// Dropped counts signals that were watched for but not sent by the owner of the name.
func (b *Bus) Dropped() uint64 { return b.dropped.Load() }

// Call makes one attempt. Errors: ErrNotConnected (nothing was sent), ErrLost, a context error (no answer in time), or
// a dbus.Error from the other side, all to be found with errors.Is and errors.As.
func (b *Bus) Call(ctx context.Context, c Call) ([]any, error) {
	body, err := b.call(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("calling %s on %s: %w", c.Member, c.Destination, err)
	}
	return body, nil
}

func (b *Bus) call(ctx context.Context, c Call) ([]any, error) {
	s := b.current()
	if s == nil {
		return nil, ErrNotConnected
	}
	return s.call(ctx, c)
}

// Get reads one property, without starting the service.
func (b *Bus) Get(ctx context.Context, dest, path, iface, property string) (dbus.Variant, error) {
	body, err := b.call(ctx, Call{
		Destination: dest, Path: path, Member: "org.freedesktop.DBus.Properties.Get",
		Args: []any{iface, property}, NoAutoStart: true,
	})
	if err != nil {
		return dbus.Variant{}, fmt.Errorf("reading property %s.%s of %s: %w", iface, property, dest, err)
	}
	v, ok := first[dbus.Variant](body)
	if !ok || len(body) != 1 {
		return dbus.Variant{}, fmt.Errorf("reading property %s.%s of %s: the answer is not a variant", iface, property, dest)
	}
	return v, nil
}

// Property is Get for a property of one type; any other is an error.
func Property[T any](ctx context.Context, b *Bus, dest, path, iface, property string) (T, error) {
	var zero T
	v, err := b.Get(ctx, dest, path, iface, property)
	if err != nil {
		return zero, err
	}
	value, ok := v.Value().(T)
	if !ok {
		return zero, fmt.Errorf("reading property %s.%s of %s: it is a %T", iface, property, dest, v.Value())
	}
	return value, nil
}

// IsNamed says whether err is the answer of the other side with this D-Bus error name.
func IsNamed(err error, name string) bool {
	reply, ok := errors.AsType[dbus.Error](err)
	return ok && reply.Name == name
}

// Watch calls handler for every signal that fits and that the owner of m.Sender sent, now and after every reconnect.
// The handler runs on the bus goroutine and must not block. In a burst of more than 256 undelivered signals older
// bodies of one watch are replaced by newer ones, and OnChange follows.
func (b *Bus) Watch(m Match, handler func(Signal)) (stop func()) {
	w := &watch{match: m, handler: handler}
	b.mu.Lock()
	b.watches = append(b.watches, w)
	b.mu.Unlock()
	b.nudge()
	return func() {
		b.mu.Lock()
		w.stopped = true
		b.watches = without(b.watches, w)
		b.mu.Unlock()
		b.nudge()
	}
}

// OnChange calls f after every connect, loss and reconnect, owner change of a watched name, new watch, and overflow:
// "read again". It runs on the bus goroutine and must not block.
func (b *Bus) OnChange(f func()) (stop func()) {
	h := &hook{f}
	b.mu.Lock()
	b.hooks = append(b.hooks, h)
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.hooks = without(b.hooks, h)
	}
}

// Serve runs export on every new connection and then asks for the name; an empty name only exports. Several calls may
// share a name. After stop a new connection no longer gets the export; the present one keeps name and object.
func (b *Bus) Serve(name string, export func(*dbus.Conn) error) (stop func()) {
	s := &service{name: name, export: export, err: ErrNotConnected}
	b.mu.Lock()
	b.services = append(b.services, s)
	b.mu.Unlock()
	b.nudge()
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.services = without(b.services, s)
	}
}

// Serving returns nil while the name is ours, and otherwise why it is not.
func (b *Bus) Serving(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session == nil {
		return ErrNotConnected
	}
	for _, s := range b.services {
		if s.name == name {
			return s.err
		}
	}
	return fmt.Errorf("name %q was never asked for", name)
}

func (b *Bus) current() *session {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session == nil || !b.session.conn.Connected() {
		return nil
	}
	return b.session
}

func (b *Bus) setSession(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.session = s
	if s != nil {
		b.sessions++
	}
}

func (b *Bus) runHooks() {
	b.mu.Lock()
	hooks := append([]*hook(nil), b.hooks...)
	b.mu.Unlock()
	for _, h := range hooks {
		h.f()
	}
}

func (b *Bus) nudge() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func without[T comparable](list []T, x T) []T {
	out := make([]T, 0, len(list))
	for _, v := range list {
		if v != x {
			out = append(out, v)
		}
	}
	return out
}
