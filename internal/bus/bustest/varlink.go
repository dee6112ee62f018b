// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Varlink is a service on a Unix socket that answers every call with the same bytes.
type Varlink struct {
	t      testing.TB
	l      *net.UnixListener
	mu     sync.Mutex
	answer []byte
	calls  []string
	conns  []net.Conn
}

// NewVarlink listens at path until the test ends. Without an Answer it never says a word.
func NewVarlink(t testing.TB, path string) *Varlink {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	v := &Varlink{t: t, l: l}
	go v.serve()
	t.Cleanup(v.Close)
	return v
}

func (v *Varlink) serve() {
	for {
		conn, err := v.l.Accept()
		if err != nil {
			return
		}
		v.mu.Lock()
		v.conns = append(v.conns, conn)
		v.mu.Unlock()
		go v.talk(conn)
	}
}

func (v *Varlink) talk(conn net.Conn) {
	r := bufio.NewReader(conn)
	for {
		message, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var call struct {
			Method     string          `json:"method"`
			Parameters *map[string]any `json:"parameters"`
		}
		if err := json.Unmarshal(message[:len(message)-1], &call); err != nil || call.Parameters == nil {
			v.t.Errorf("a call that is not varlink: %q, %v", message, err)
		}
		v.mu.Lock()
		v.calls = append(v.calls, call.Method)
		answer := v.answer
		v.mu.Unlock()
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// Answer sets the bytes of every answer, the zero byte at its end included.
func (v *Varlink) Answer(raw string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answer = []byte(raw)
}

// Path is where it listens.
func (v *Varlink) Path() string { return v.l.Addr().String() }

// Calls returns the methods called so far.
func (v *Varlink) Calls() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.calls...)
}

// Close ends the service and leaves its socket behind, as one that was killed does.
func (v *Varlink) Close() {
	_ = v.l.Close()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, conn := range v.conns {
		_ = conn.Close()
	}
}
