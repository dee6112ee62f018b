// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// claimAgain is how often a name that another process holds, or that a policy denies, is asked for again.
const claimAgain = 30 * time.Second

// session is one connection. Everything but conn is guarded by Bus.mu; only the Run goroutine talks to the bus daemon.
type session struct {
	bus  *Bus
	conn *dbus.Conn

	owners   map[string]*owner // of each watched or served well-known name
	matched  map[*watch]bool   // the match rule stands
	exported map[*service]bool

	queue   []delivery
	changed bool // an owner changed or the queue overflowed: everybody reads again
}

// owner is the unique name behind a well-known name. seen counts NameOwnerChanged, so that a slower answer of
// GetNameOwner does not undo a newer change.
type owner struct {
	unique string
	seen   int
}

type delivery struct {
	watch  *watch
	signal Signal
}

func newSession(b *Bus) *session {
	return &session{
		bus:      b,
		owners:   map[string]*owner{},
		matched:  map[*watch]bool{},
		exported: map[*service]bool{},
	}
}

// serve delivers signals and keeps the subscriptions up to date until the connection or ctx ends.
func (s *session) serve(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if s.unclaimed() {
			again = time.After(claimAgain)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.conn.Context().Done():
			return errors.New("the system bus closed the connection")
		case <-again:
			if err := s.claim(ctx); err != nil {
				return err
			}
			continue
		case <-s.bus.wake:
		}
		s.deliver()
		if err := s.sync(ctx); err != nil {
			return err
		}
		if s.takeChanged() {
			s.bus.runHooks()
		}
	}
}

// DeliverSignal implements dbus.SignalHandler. godbus calls it on its reading goroutine, one signal after the other:
// its own default handler starts a goroutine for each signal, which reorders them (godbus/dbus#187), and its sequential
// one queues without a bound.
func (s *session) DeliverSignal(iface, member string, sig *dbus.Signal) {
	b := s.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	if iface == busName && member == "NameOwnerChanged" {
		s.ownerChanged(sig)
		return
	}
	fits, accepted := false, false
	for _, w := range b.watches {
		if !w.match.fits(iface, member, sig) {
			continue
		}
		fits = true
		if o := s.owners[w.match.Sender]; o != nil && o.unique != "" && o.unique == sig.Sender {
			accepted = true
			s.enqueue(w, Signal{Path: string(sig.Path), Interface: iface, Member: member, Body: sig.Body})
		}
	}
	if fits && !accepted {
		b.dropped.Add(1)
	}
}

func (s *session) ownerChanged(sig *dbus.Signal) {
	if sig.Sender != busName {
		s.bus.dropped.Add(1) // a unicast forgery: the bus itself writes the sender
		return
	}
	if len(sig.Body) != 3 {
		return
	}
	name, ok := sig.Body[0].(string)
	unique, ok2 := sig.Body[2].(string)
	o := s.owners[name]
	if !ok || !ok2 || o == nil {
		return
	}
	o.unique, o.seen = unique, o.seen+1
	s.changed = true
	s.bus.nudge()
}

func (s *session) enqueue(w *watch, sig Signal) {
	defer s.bus.nudge()
	if len(s.queue) >= maxQueue {
		s.changed = true
		for i := len(s.queue) - 1; i >= 0; i-- {
			if s.queue[i].watch == w {
				s.queue[i].signal = sig
				return
			}
		}
	}
	s.queue = append(s.queue, delivery{w, sig})
}

func (s *session) deliver() {
	b := s.bus
	b.mu.Lock()
	queue := s.queue
	s.queue = nil
	b.mu.Unlock()
	for _, d := range queue {
		b.mu.Lock()
		stopped := d.watch.stopped
		b.mu.Unlock()
		if !stopped {
			d.watch.handler(d.signal)
		}
	}
}

func (s *session) takeChanged() bool {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	changed := s.changed
	s.changed = false
	return changed
}

// sync brings the bus daemon up to date with the watches and services. A refusal of the daemon is logged and the slow
// polls of the sources bridge it; only a lost or silent connection is an error.
func (s *session) sync(ctx context.Context) error {
	b := s.bus
	b.mu.Lock()
	var added, removed []*watch
	for _, w := range b.watches {
		if !s.matched[w] {
			added = append(added, w)
		}
	}
	for w := range s.matched {
		if w.stopped {
			removed = append(removed, w)
		}
	}
	services := append([]*service(nil), b.services...)
	b.mu.Unlock()

	for _, w := range removed {
		if err := s.ask(ctx, "RemoveMatch", w.match.rule()); err != nil {
			return err
		}
		b.mu.Lock()
		delete(s.matched, w)
		b.mu.Unlock()
	}
	for _, w := range added {
		// The owner first: a signal that follows the new match at once must find it known.
		if err := s.track(ctx, w.match.Sender); err != nil {
			return err
		}
		if err := s.ask(ctx, "AddMatch", w.match.rule()); err != nil {
			return err
		}
		b.mu.Lock()
		s.matched[w], s.changed = true, true
		b.mu.Unlock()
	}
	for _, v := range services {
		if s.exported[v] {
			continue
		}
		if err := v.export(s.conn); err != nil {
			b.log.Error("exporting an object", "name", v.name, "err", err)
		}
		s.exported[v] = true
		b.mu.Lock()
		s.changed = true
		b.mu.Unlock()
		if v.name != "" {
			if err := s.track(ctx, v.name); err != nil {
				return err
			}
		}
	}
	return s.claim(ctx)
}

// claim asks for every served name that nobody owns.
func (s *session) claim(ctx context.Context) error {
	b := s.bus
	me := s.conn.Names()[0]
	b.mu.Lock()
	var free []string
	for _, v := range b.services {
		o := s.owners[v.name]
		switch {
		case o == nil:
		case o.unique == me:
			v.err = nil
		case o.unique == "":
			if !slices.Contains(free, v.name) {
				free = append(free, v.name)
			}
		default:
			b.setServing(v.name, fmt.Errorf("name %q belongs to another process (%s)", v.name, o.unique))
		}
	}
	b.mu.Unlock()
	for _, name := range free {
		body, err := s.call(ctx, Call{
			Destination: busName, Path: busPath, Member: busName + ".RequestName",
			Args: []any{name, uint32(dbus.NameFlagDoNotQueue)},
		})
		if err != nil && !isReply(err) {
			return err
		}
		code, _ := first[uint32](body)
		mine := code == uint32(dbus.RequestNameReplyPrimaryOwner) || code == uint32(dbus.RequestNameReplyAlreadyOwner)
		switch {
		case err != nil:
			err = fmt.Errorf("asking for the name %q: %w", name, err)
		case !mine:
			err = fmt.Errorf("name %q belongs to another process", name)
		}
		b.mu.Lock()
		b.setServing(name, err)
		if mine {
			s.owners[name].unique = me
		}
		b.mu.Unlock()
	}
	return nil
}

// unclaimed says whether a name that we want is not ours.
func (s *session) unclaimed() bool {
	s.bus.mu.Lock()
	defer s.bus.mu.Unlock()
	return slices.ContainsFunc(s.bus.services, func(v *service) bool { return v.name != "" && v.err != nil })
}

// setServing notes why a name is not ours and says it once.
func (b *Bus) setServing(name string, err error) {
	for _, v := range b.services {
		if v.name != name {
			continue
		}
		if err != nil && (v.err == nil || v.err.Error() != err.Error()) {
			b.log.Error("our name on the system bus is not available", "name", name, "err", err)
		}
		v.err = err
	}
}

// track learns who owns name and keeps knowing it.
func (s *session) track(ctx context.Context, name string) error {
	b := s.bus
	b.mu.Lock()
	if s.owners[name] != nil {
		b.mu.Unlock()
		return nil
	}
	o := &owner{}
	s.owners[name] = o
	b.mu.Unlock()

	err := s.ask(ctx, "AddMatch",
		Match{Sender: busName, Path: busPath, Interface: busName, Member: "NameOwnerChanged", Arg0: name}.rule())
	if err != nil {
		return err
	}
	b.mu.Lock()
	seen := o.seen
	b.mu.Unlock()
	body, err := s.call(ctx, Call{
		Destination: busName, Path: busPath, Member: busName + ".GetNameOwner", Args: []any{name},
	})
	if err != nil && !isReply(err) {
		return err
	}
	unique, _ := first[string](body) // an error answer means that nobody owns it
	b.mu.Lock()
	defer b.mu.Unlock()
	if o.seen == seen {
		o.unique = unique
	}
	return nil
}

// ask calls a method of the bus daemon that takes a match rule.
func (s *session) ask(ctx context.Context, member, rule string) error {
	_, err := s.call(ctx, Call{
		Destination: busName, Path: busPath, Member: busName + "." + member, Args: []any{rule},
	})
	if err != nil && isReply(err) {
		s.bus.log.Error("the bus refuses a match rule", "rule", rule, "err", err)
		return nil
	}
	return err
}

func (s *session) call(ctx context.Context, c Call) ([]any, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
	}
	if c.Timeout == 0 {
		c.Timeout = s.bus.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var flags dbus.Flags
	if c.NoAutoStart {
		flags = dbus.FlagNoAutoStart
	}
	call := s.conn.Object(c.Destination, dbus.ObjectPath(c.Path)).CallWithContext(ctx, c.Member, flags, c.Args...)
	var reply dbus.Error
	switch err := call.Err; {
	case err == nil:
		return call.Body, nil
	case errors.As(err, &reply):
		return nil, refusal(reply)
	case errors.Is(err, dbus.ErrClosed): // godbus says so only when it did not send
		return nil, ErrNotConnected
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer: %w", ctx.Err())
	case isEncoding(err):
		return nil, err
	default:
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	}
}

// refusal is the answer of the other side with its name in the text, once.
func refusal(reply dbus.Error) error {
	if reply.Error() == reply.Name {
		return reply
	}
	return fmt.Errorf("%s: %w", reply.Name, reply)
}

// isReply says whether err is an answer of the other side, so that the connection still works.
func isReply(err error) bool {
	var reply dbus.Error
	return errors.As(err, &reply)
}

// isEncoding says whether the message could not be built, so that nothing was sent.
func isEncoding(err error) bool {
	var format dbus.FormatError
	var message dbus.InvalidMessageError
	return errors.As(err, &format) || errors.As(err, &message)
}

func first[T any](body []any) (T, bool) {
	var zero T
	if len(body) == 0 {
		return zero, false
	}
	v, ok := body[0].(T)
	return v, ok
}

// rule renders the match for AddMatch. The sender is in it, so that the bus itself drops forged broadcasts.
func (m Match) rule() string {
	var b strings.Builder
	b.WriteString("type='signal'")
	for _, kv := range [][2]string{
		{"sender", m.Sender}, {"path", m.Path}, {"interface", m.Interface}, {"member", m.Member}, {"arg0", m.Arg0},
	} {
		if kv[1] != "" {
			// A quote ends the quoted part, is given escaped, and opens the next.
			fmt.Fprintf(&b, ",%s='%s'", kv[0], strings.ReplaceAll(kv[1], "'", `'\''`))
		}
	}
	return b.String()
}

// fits says whether a signal has the shape that the match asks for; the sender is looked at apart.
func (m Match) fits(iface, member string, sig *dbus.Signal) bool {
	if m.Path != "" && m.Path != string(sig.Path) ||
		m.Interface != "" && m.Interface != iface ||
		m.Member != "" && m.Member != member {
		return false
	}
	if m.Arg0 == "" {
		return true
	}
	arg0, ok := first[string](sig.Body)
	return ok && arg0 == m.Arg0
}
