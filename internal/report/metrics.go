// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/plan"
)

const (
	textfileName   = "kured-agent.prom"
	textfileEvery  = time.Minute // while a reboot is required: ages and counters move without an update
	listenAgain    = time.Minute
	maxConnections = 8
)

// Counter is a value that another part of the program counts. Labels is empty or `{key="value"}`.
type Counter struct {
	Name, Labels, Help string
	Read               func() uint64
}

// MetricsOptions says where the metrics go.
type MetricsOptions struct {
	Latest   func() Update
	Listen   string // "host:port", "unix:/path", or empty
	Textfile string // directory of node_exporter's textfile collector, or empty
	Counters []Counter
	Logger   *slog.Logger
}

// Metrics serves the newest update in the Prometheus text format, written by hand: the exposition is a pure function of
// the update, needs no registry, and a library would add 0.35 MB to the binary and 0.5 MB to the resident memory.
type Metrics struct {
	MetricsOptions
	failures atomic.Uint64
	changed  mailbox[struct{}]
}

// NewMetrics returns metrics that Run serves and writes.
func NewMetrics(o MetricsOptions) *Metrics {
	return &Metrics{MetricsOptions: o, changed: newMailbox[struct{}]()}
}

func (m *Metrics) Take(before, after Update) {
	if f := after.Failure; f != nil && before.Phase != "" && (before.Failure == nil || *f != *before.Failure) {
		m.failures.Add(1)
	}
	m.changed.put(struct{}{})
}

// Run serves and writes until ctx ends. What can't be done now is logged once and tried again: the port may be another
// program's for a while.
func (m *Metrics) Run(ctx context.Context) {
	var all sync.WaitGroup
	if m.Listen != "" {
		all.Go(func() { m.keepServing(ctx) })
	}
	if m.Textfile != "" {
		all.Go(func() { m.keepWriting(ctx) })
	}
	all.Wait()
}

func (m *Metrics) keepServing(ctx context.Context) {
	trouble := ""
	for {
		err := m.Serve(ctx, m.Listen)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != trouble {
			trouble = err.Error()
			m.Logger.Error("metrics are not served", "err", err)
		}
		if !pause(ctx, listenAgain) {
			return
		}
	}
}

// Serve answers GET /metrics on address ("host:port" or "unix:/path") until ctx ends. An address that can't be listened
// on is an error.
func (m *Metrics) Serve(ctx context.Context, address string) error {
	listener, err := listen(ctx, address)
	if err != nil {
		return fmt.Errorf("listening on %q: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.serve)
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(m.Logger.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err = server.Serve(&boundedListener{Listener: listener, free: make(chan struct{}, maxConnections)})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving metrics on %q: %w", address, err)
}

func (m *Metrics) serve(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(m.exposition(time.Now()))
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return new(net.ListenConfig).Listen(ctx, "tcp", address)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(ctx, path) {
		_ = os.Remove(path)
		listener, err = new(net.ListenConfig).Listen(ctx, "unix", path)
	}
	if err != nil {
		return nil, err
	}
	// As open as a loopback port; the directory decides who gets here.
	if err := os.Chmod(path, 0o666); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}

// abandoned says whether path is a socket that nobody listens on: what a killed agent leaves behind. A file of another
// kind refuses connections too.
func abandoned(ctx context.Context, path string) bool {
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// boundedListener leaves further connections in the backlog: scrapers must not use up the agent's file descriptors.
type boundedListener struct {
	net.Listener
	free chan struct{}
}

func (l *boundedListener) Accept() (net.Conn, error) {
	l.free <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &boundedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.free })}, nil
}

type boundedConn struct {
	net.Conn
	release func()
}

func (c *boundedConn) Close() error {
	c.release()
	return c.Conn.Close()
}

func (m *Metrics) keepWriting(ctx context.Context) {
	path := filepath.Join(m.Textfile, textfileName)
	trouble := ""
	tick := time.NewTicker(textfileEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = os.Remove(path) // else node_exporter would show the last values for ever
			return
		case <-m.changed:
		case <-tick.C:
			if m.Latest().Level == plan.NotRequired {
				continue
			}
		}
		text := ""
		if err := files.Replace(path, 0o644, m.exposition(time.Now())); err != nil {
			text = err.Error()
		}
		if text != trouble && text != "" {
			m.Logger.Error("metrics are not written", "err", text)
		}
		trouble = text
	}
}

func (m *Metrics) exposition(now time.Time) []byte {
	var b bytes.Buffer
	writeState(&b, m.Latest(), now)
	failures := sample{value: float64(m.failures.Load())}
	family(&b, "failures_total", "counter", "Attempts given up since the agent started.", failures)
	last := ""
	for _, c := range m.Counters {
		if c.Name != last {
			header(&b, c.Name, "counter", c.Help)
			last = c.Name
		}
		line(&b, c.Name, sample{c.Labels, float64(c.Read())})
	}
	return b.Bytes()
}

// blockedSamples has one sample a kind of blocker.
func blockedSamples(blockers []Blocker, now time.Time) []sample {
	var all []sample
	seen := map[string]bool{}
	for _, b := range blockers {
		if !seen[b.Kind] && !b.Since.IsZero() {
			seen[b.Kind] = true
			all = append(all, sample{label("reason", b.Kind), age(now, b.Since)})
		}
	}
	return all
}

// writeState is pure. Labels come from short lists: phases, configured sources, one version.
func writeState(w *bytes.Buffer, u Update, now time.Time) {
	gauge := func(name, help string, samples ...sample) { family(w, name, "gauge", help, samples...) }
	counter := func(name, help string, value float64) { family(w, name, "counter", help, sample{value: value}) }

	gauge("build_info", "Version of the agent.", sample{label("version", u.Version), 1})
	gauge("phase", "What the agent is doing now.", sample{label("phase", u.Phase), 1})
	gauge("reboot_required", "1 if a reboot is required, 0 if not, NaN if that is not known.", levelSample(u.Level))
	if blocked := blockedSamples(u.Blocked, now); len(blocked) > 0 {
		gauge("blocked_seconds", "How long the required reboot has been held back, by what.", blocked...)
	}
	gauge("beside", "How many other programs reboot this host by themselves.", sample{value: float64(len(u.Beside))})
	if u.API != APIAway {
		gauge("tainted", "1 if our taint is on the Node. Absent while the API server does not answer.", truth(u.Tainted))
		gauge("cordoned", "1 if we cordoned the Node. Absent while the API server does not answer.", truth(u.Cordoned))
	}
	gauge("slot_held", "1 if this node holds a slot of its pool.", truth(u.Slot != ""))
	if u.Slot != "" && !u.SlotSince.IsZero() {
		gauge("slot_held_seconds", "How long the slot has been held.", sample{value: age(now, u.SlotSince)})
	}
	gauge("window_open", "1 if a reboot may happen now by the maintenance windows.", truth(u.Window.Open))
	if u.LastReboot != nil {
		gauge("last_reboot_timestamp_seconds", "When the node was back from the last reboot that the agent asked for.",
			sample{value: float64(u.LastReboot.At.UnixMilli()) / 1000})
	}
	gauge("unhealthy", "1 if the node is not healthy and the boot deadline has passed.", truth(u.Unhealthy != ""))
	gauge("source_up", "1 if the source can be read.", sourcesUp(u.Sources)...)
	if c := u.Credential; c != nil {
		if !c.Expires.IsZero() {
			gauge("credential_expires_timestamp_seconds", "When the credential expires, by the API server's clock.",
				sample{value: float64(c.Expires.Unix())})
		}
		gauge("credential_trouble", "1 if the credential is expired, not renewed in time or not safe.", truth(c.Trouble != ""))
	}
	counter("renewals_total", "Renewals of the credential.", float64(u.Renewals))
	counter("renewal_failures_total", "Tries to renew the credential that failed.", float64(u.RenewalFailures))
	counter("dropped_signals_total", "D-Bus signals whose sender did not own the name.", float64(u.Dropped))
	counter("api_requests_total", "Requests to the API server.", float64(u.Requests))
	counter("node_writes_total", "Patches of the Node.", float64(u.NodeWrites))
}

// sourcesUp has each name once, as the format demands.
func sourcesUp(sources []SourceStatus) []sample {
	var all []sample
	seen := make(map[string]bool, len(sources))
	for _, s := range sources {
		if !seen[s.Name] {
			seen[s.Name] = true
			all = append(all, sample{label("source", s.Name), truth(s.Err == "").value})
		}
	}
	return all
}

// courierCounters sums over the couriers of one sink: a label per webhook would show its host.
func courierCounters(sink string, couriers []*courier) []Counter {
	sum := func(of func(*courier) uint64) func() uint64 {
		return func() uint64 {
			var n uint64
			for _, c := range couriers {
				n += of(c)
			}
			return n
		}
	}
	failed := sum(func(c *courier) uint64 { return c.failed.Load() })
	dropped := sum(func(c *courier) uint64 { return c.dropped.Load() })
	return []Counter{
		{sink + "_failures_total", "", "Notifications that could not be delivered.", failed},
		{sink + "_dropped_total", "", "Notifications dropped because the queue was full.", dropped},
	}
}

const namespace = "kured_agent_"

type sample struct {
	labels string
	value  float64
}

func truth(b bool) sample {
	if b {
		return sample{value: 1}
	}
	return sample{}
}

func levelSample(l plan.Level) sample {
	if l == plan.Unknown {
		return sample{value: math.NaN()}
	}
	return truth(l == plan.Required)
}

func age(now, since time.Time) float64 { return max(now.Sub(since).Seconds(), 0) }

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func label(key, value string) string { return "{" + key + `="` + labelEscapes.Replace(value) + `"}` }

func family(w *bytes.Buffer, name, kind, help string, samples ...sample) {
	header(w, name, kind, help)
	for _, s := range samples {
		line(w, name, s)
	}
}

func header(w *bytes.Buffer, name, kind, help string) {
	fmt.Fprintf(w, "# HELP %s%s %s\n# TYPE %s%s %s\n", namespace, name, help, namespace, name, kind)
}

func line(w *bytes.Buffer, name string, s sample) {
	fmt.Fprintf(w, "%s%s%s %s\n", namespace, name, s.labels, strconv.FormatFloat(s.value, 'f', -1, 64))
}
