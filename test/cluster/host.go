// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// TB is what this package needs of a *testing.T; a Host stands in for it in a program.
type TB interface {
	Helper()
	Name() string
	TempDir() string
	Cleanup(func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any) // does not return
	Failed() bool
}

// Host is a TB for a program: failures become an error of Run, which also runs the cleanups.
type Host struct {
	name string
	log  io.Writer

	mu       sync.Mutex
	cleanups []func()
	failed   bool
}

type failure struct{ error }

// NewHost returns a Host that writes its log lines to log.
func NewHost(name string, log io.Writer) *Host { return &Host{name: name, log: log} }

// Run calls f and afterwards every registered cleanup, the last first. A Fatalf in f's goroutine ends f and is returned.
func (h *Host) Run(f func()) (err error) {
	defer h.Close()
	defer func() {
		if stopped, ok := recover().(failure); ok {
			err = stopped.error
		}
	}()
	f()
	return nil
}

// Close runs the cleanups registered so far.
func (h *Host) Close() {
	for {
		h.mu.Lock()
		n := len(h.cleanups)
		if n == 0 {
			h.mu.Unlock()
			return
		}
		last := h.cleanups[n-1]
		h.cleanups = h.cleanups[:n-1]
		h.mu.Unlock()
		last()
	}
}

// Helper does nothing.
func (h *Host) Helper() {}

// Name returns the name given to NewHost.
func (h *Host) Name() string { return h.name }

// Cleanup registers f to run at the end.
func (h *Host) Cleanup(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cleanups = append(h.cleanups, f)
}

// TempDir returns a new folder that is removed at the end.
func (h *Host) TempDir() string {
	dir, err := os.MkdirTemp("", h.name+"-")
	if err != nil {
		h.Fatalf("making a temporary folder: %v", err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Logf writes one line.
func (h *Host) Logf(format string, args ...any) { _, _ = fmt.Fprintf(h.log, format+"\n", args...) }

// Fatalf ends the function given to Run.
func (h *Host) Fatalf(format string, args ...any) {
	h.mu.Lock()
	h.failed = true
	h.mu.Unlock()
	panic(failure{fmt.Errorf(format, args...)})
}

// Failed says whether Fatalf was called.
func (h *Host) Failed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failed
}

// Main is the TestMain of a package whose tests share one cluster: it runs them and ends with their exit code. shared is
// set before the first test begins.
func Main(m interface{ Run() int }, name string, o Options, shared **Cluster) {
	host := NewHost(name, os.Stderr)
	code := 1
	err := host.Run(func() {
		*shared = Start(host, o)
		code = m.Run()
	})
	if err != nil {
		host.Logf("%v", err)
		code = 1
	}
	os.Exit(code)
}
