// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
)

// datagrams listens on a unix datagram socket; next returns one datagram.
func datagrams(t *testing.T) (path string, conn *net.UnixConn, next func() string) {
	t.Helper()
	path = filepath.Join(bustest.SocketDir(t), "socket")
	conn = bind(t, path)
	return path, conn, func() string { return read(t, conn) }
}

func bind(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func read(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	buf := make([]byte, 256<<10)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// decode reads journald's native protocol.
func decode(t *testing.T, entry string) map[string]string {
	t.Helper()
	fields := map[string]string{}
	for entry != "" {
		line, rest, _ := strings.Cut(entry, "\n")
		key, value, plain := strings.Cut(line, "=")
		if !plain {
			size := binary.LittleEndian.Uint64([]byte(rest[:8]))
			value, rest = rest[8:8+size], rest[8+size+1:]
		}
		fields[key] = value
		entry = rest
	}
	return fields
}

func TestJournalEntriesAreReadableAndStructured(t *testing.T) {
	t.Parallel()
	path, _, next := datagrams(t)
	logger := slog.New(NewJournalHandler(path, nil, slog.LevelInfo)).With("node", "node-1")

	logger.WithGroup("slot").Warn("slot lost", "name", "slot-default-0", slog.Group("by", "id", 7),
		"err", errors.New("two\nlines"), "held", 90*time.Second, "odd key!", "x=1", "empty", "")
	want := map[string]string{
		"MESSAGE": `slot lost node=node-1 slot.name=slot-default-0 slot.by.id=7 slot.err="two\nlines" ` +
			`slot.held=1m30s slot.odd key!="x=1" slot.empty=""`,
		"PRIORITY":                  "4",
		"SYSLOG_IDENTIFIER":         "kured-agent",
		"KURED_AGENT_NODE":          "node-1",
		"KURED_AGENT_SLOT_NAME":     "slot-default-0",
		"KURED_AGENT_SLOT_BY_ID":    "7",
		"KURED_AGENT_SLOT_ERR":      "two\nlines",
		"KURED_AGENT_SLOT_HELD":     "1m30s",
		"KURED_AGENT_SLOT_ODD_KEY_": "x=1",
		"KURED_AGENT_SLOT_EMPTY":    "",
	}
	if diff := cmp.Diff(want, decode(t, next())); diff != "" {
		t.Error(diff)
	}

	logger.Debug("not wanted")
	for level, priority := range map[slog.Level]string{
		slog.LevelInfo: "6", slog.LevelInfo + 2: "5", slog.LevelWarn: "4", slog.LevelError: "3",
	} {
		logger.Log(t.Context(), level, "x")
		if got := decode(t, next()); got["PRIORITY"] != priority || got["MESSAGE"] != "x node=node-1" {
			t.Errorf("level %v: %v", level, got)
		}
	}
}

type bomb struct{}

func (*bomb) Error() string         { panic("boom") }
func (bomb) LogValue() slog.Value   { panic("boom") }
func (bomb) Format(fmt.State, rune) { panic("boom") }

func TestLoggingNeverPanicsAndStaysInBounds(t *testing.T) {
	t.Parallel()
	path, _, next := datagrams(t)
	logger := slog.New(NewJournalHandler(path, nil, slog.LevelInfo))
	args := []any{"bomb", bomb{}, "nil", (*bomb)(nil), "odd"}
	for i := range 100 {
		args = append(args, strings.Repeat("k", i+1), strings.Repeat("v", 10<<10))
	}
	logger.Info("x", args...)
	entry := next()
	if len(entry) > maxJournal+1024 {
		t.Errorf("%d bytes", len(entry))
	}
	for key := range decode(t, entry) {
		if len(key) > maxJournalKey {
			t.Errorf("key %q is too long for journald", key)
		}
	}
}

func TestAJournalThatRestartsIsFoundAgain(t *testing.T) {
	t.Parallel()
	path, conn, next := datagrams(t)
	var fallback bytes.Buffer
	logger := slog.New(NewJournalHandler(path, &fallback, slog.LevelInfo))
	logger.Info("one")
	next()
	_ = conn.Close()
	_ = os.Remove(path)
	logger.Info("two", "node", "node-1")
	if got := fallback.String(); got != "two node=node-1\n" {
		t.Errorf("while the journal is away stderr gets %q", got)
	}
	conn = bind(t, path)
	logger.Info("three")
	if got := decode(t, read(t, conn)); got["MESSAGE"] != "three" {
		t.Errorf("after its return: %v", got)
	}
}

func TestAJournalThatHangsDelaysTheCallerOnce(t *testing.T) {
	t.Parallel()
	path, _, next := datagrams(t)
	handler := NewJournalHandler(path, nil, slog.LevelInfo)
	logger := slog.New(handler)
	began := time.Now()
	written := 0
	for ; handler.Dropped() < 100 && written < 100_000; written++ {
		logger.Info("x")
	}
	if handler.Dropped() < 100 || time.Since(began) > 5*time.Second {
		t.Errorf("%d of %d dropped in %v", handler.Dropped(), written, time.Since(began))
	}
	next()
	logger.Info("taken again")
	before := handler.Dropped()
	logger.Info("dropped")
	if handler.Dropped() != before+1 {
		t.Errorf("with one free place: %d dropped, then %d", before, handler.Dropped())
	}
}
