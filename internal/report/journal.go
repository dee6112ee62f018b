// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/journal"

	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	journalSocket  = "/run/systemd/journal/socket"
	journalPrefix  = "KURED_AGENT_"
	journalTimeout = 200 * time.Millisecond
	maxJournalKey  = 64
	maxJournalText = 8 << 10  // of one value
	maxJournal     = 64 << 10 // of one entry: well below the socket buffer, so no memfd is ever needed
)

// NewHandler returns a handler that writes to the journal with fields when stderr goes there, and text to stderr else.
func NewHandler(level slog.Leveler) slog.Handler {
	if direct, err := journal.StderrIsJournalStream(); err == nil && direct {
		return NewJournalHandler(journalSocket, os.Stderr, level)
	}
	return slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
}

// JournalHandler writes journal entries: MESSAGE is the message and its key=value pairs, and each pair is a field
// KURED_AGENT_<KEY> too. An entry that the journal does not take in time is dropped and counted, one that it can't take
// goes to the fallback. It has its own write because go-systemd's waits for ever on a journald that hangs, and the loop
// logs.
type JournalHandler struct {
	out    *journalWriter
	level  slog.Leveler
	prefix string  // of the open groups, "group.group."
	fields []field // from WithAttrs
}

type field struct{ key, value string }

// NewJournalHandler writes to the datagram socket; fallback may be nil.
func NewJournalHandler(socket string, fallback io.Writer, level slog.Leveler) *JournalHandler {
	return &JournalHandler{out: &journalWriter{socket: socket, fallback: fallback}, level: level}
}

// Dropped counts the entries that the journal did not take in time.
func (h *JournalHandler) Dropped() uint64 { return h.out.dropped.Load() }

func (h *JournalHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

func (h *JournalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.fields = slices.Clip(h.fields)
	for _, a := range attrs {
		with.fields = flatten(with.fields, h.prefix, a)
	}
	return &with
}

func (h *JournalHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.prefix += name + "."
	return &with
}

// Handle never fails: nobody could be told.
func (h *JournalHandler) Handle(_ context.Context, r slog.Record) error {
	fields := slices.Clip(h.fields)
	r.Attrs(func(a slog.Attr) bool {
		fields = flatten(fields, h.prefix, a)
		return true
	})
	message := readable(r.Message, fields)
	h.out.write(entry(message, r.Level, fields), message)
	return nil
}

// flatten appends the attribute, or those of its group, as slog's own handlers understand them.
func flatten(fields []field, prefix string, a slog.Attr) []field {
	value := a.Value.Resolve()
	switch {
	case value.Kind() == slog.KindGroup:
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, member := range value.Group() {
			fields = flatten(fields, prefix, member)
		}
		return fields
	case a.Equal(slog.Attr{}):
		return fields
	case value.Kind() == slog.KindTime:
		return append(fields, field{prefix + a.Key, value.Time().Format(time.RFC3339)})
	}
	return append(fields, field{prefix + a.Key, text.Shorten(value.String(), maxJournalText)})
}

func readable(message string, fields []field) string {
	var b strings.Builder
	b.WriteString(message)
	for _, f := range fields {
		b.WriteString(" " + f.key + "=" + quoted(f.value))
	}
	return text.Shorten(b.String(), 2*maxJournalText)
}

// quoted leaves plain words as they are. Control characters are always escaped: the journal shows a message with any as
// "blob data".
func quoted(s string) string {
	plain := func(r rune) bool { return r > ' ' && r != '"' && r != '=' && strconv.IsPrint(r) }
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return strconv.Quote(s)
}

// entry encodes for journald: KEY=value lines, and a value with line breaks as KEY, its length and its bytes.
func entry(message string, level slog.Level, fields []field) []byte {
	var b bytes.Buffer
	add := func(key, value string) {
		if b.Len()+len(key)+len(value) > maxJournal {
			return
		}
		b.WriteString(key)
		if !strings.Contains(value, "\n") {
			b.WriteString("=" + value + "\n")
			return
		}
		b.WriteByte('\n')
		b.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(value))))
		b.WriteString(value + "\n")
	}
	add("MESSAGE", message)
	add("PRIORITY", strconv.Itoa(int(priority(level))))
	add("SYSLOG_IDENTIFIER", "kured-agent")
	for _, f := range fields {
		add(fieldName(f.key), f.value)
	}
	return b.Bytes()
}

func priority(level slog.Level) journal.Priority {
	switch {
	case level >= slog.LevelError:
		return journal.PriErr
	case level >= slog.LevelWarn:
		return journal.PriWarning
	case level > slog.LevelInfo:
		return journal.PriNotice
	case level == slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}

// fieldName makes a name that journald accepts: capital letters, digits and underscores, at most 64.
func fieldName(key string) string {
	name := journalPrefix + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z' || r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
	return name[:min(len(name), maxJournalKey)]
}

type journalWriter struct {
	socket   string
	fallback io.Writer
	dropped  atomic.Uint64

	mu    sync.Mutex
	conn  *net.UnixConn
	stuck bool // the last entry was not taken in time: the next one gets one millisecond
}

func (w *journalWriter) write(entry []byte, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.send(entry)
	if err != nil && !timedOut(err) {
		err = w.send(entry) // journald was restarted: its socket is a new one
	}
	switch {
	case err == nil:
	case timedOut(err):
		w.dropped.Add(1)
	case w.fallback != nil:
		_, _ = io.WriteString(w.fallback, message+"\n")
	}
}

func (w *journalWriter) send(entry []byte) error {
	if w.conn == nil {
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: w.socket, Net: "unixgram"})
		if err != nil {
			return err
		}
		w.conn = conn
	}
	timeout := journalTimeout
	if w.stuck {
		timeout = time.Millisecond
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(timeout))
	_, err := w.conn.Write(entry)
	w.stuck = timedOut(err)
	if err != nil && !timedOut(err) {
		_ = w.conn.Close()
		w.conn = nil
	}
	return err
}

func timedOut(err error) bool { return os.IsTimeout(err) }
