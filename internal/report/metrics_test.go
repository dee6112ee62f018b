// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

func metricsOf(u Update, counters ...Counter) *Metrics {
	u = u.bounded()
	return NewMetrics(MetricsOptions{Latest: func() Update { return u }, Counters: counters,
		Logger: slog.New(slog.DiscardHandler)})
}

func TestTheExpositionIsComplete(t *testing.T) {
	t.Parallel()
	n, err := NewNotifier([]string{"https://hooks.example/x"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n.couriers[0].failed.Add(2)
	full := metricsOf(full(), n.Counters()...)
	full.Take(draining(), Update{Failure: &plan.Failure{Count: 3}})
	golden(t, "metrics-full.prom", string(full.exposition(night)))

	hostile := Update{Phase: "Unreachable", Level: plan.Unknown, API: APIAway, Version: `1"\`, Sources: []SourceStatus{
		{Name: `a"b\c` + "\n}x 1"}, {Name: "twice"}, {Name: "twice", Err: "x"},
	}}
	golden(t, "metrics-away.prom", string(metricsOf(hostile).exposition(night)))
}

// get asks for path and says what came.
func get(t *testing.T, client *http.Client, url string) (code int, contentType, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", "", err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(content), err
}

func freeAddress(t *testing.T, network, host string) string {
	t.Helper()
	l, err := net.Listen(network, host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestMetricsAreServedOnEveryKindOfAddress(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(bustest.SocketDir(t), "metrics.sock")
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	overSocket := &http.Client{Transport: &http.Transport{DialContext: dial}}
	v4, v6 := freeAddress(t, "tcp4", "127.0.0.1"), freeAddress(t, "tcp6", "[::1]")
	for _, c := range []struct {
		address, url string
		client       *http.Client
	}{
		{v4, "http://" + v4, &http.Client{Transport: &http.Transport{}}},
		{v6, "http://" + v6, &http.Client{Transport: &http.Transport{}}},
		{"unix:" + socket, "http://metrics", overSocket},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- metricsOf(full()).Serve(ctx, c.address) }()
		bustest.Eventually(t, "an answer on "+c.address, func() bool {
			code, contentType, body, err := get(t, c.client, c.url+"/metrics")
			return err == nil && code == 200 && strings.HasPrefix(contentType, "text/plain; version=0.0.4") &&
				strings.Contains(body, `kured_agent_phase{phase="Draining"} 1`)
		})
		if code, _, _, _ := get(t, c.client, c.url+"/debug/pprof/"); code != http.StatusNotFound {
			t.Errorf("%s: another path answers %d", c.address, code)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", c.address, err)
		}
	}
}

func TestAnAddressInUseIsAnErrorAndAnAbandonedSocketIsNot(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := metricsOf(full()).Serve(t.Context(), taken.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) ||
		!strings.HasPrefix(err.Error(), `listening on "127.0.0.1:`) {
		t.Errorf("port in use: %v", err)
	}

	socket := filepath.Join(bustest.SocketDir(t), "s")
	old, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), "unix:"+socket); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("socket in use: %v", err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = old.Close()
	l, err := listen(t.Context(), "unix:"+socket)
	if err != nil {
		t.Fatalf("abandoned socket: %v", err)
	}
	_ = l.Close()

	file := filepath.Join(bustest.SocketDir(t), "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), "unix:"+file); err == nil {
		t.Error("listened on a file")
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "x" {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestAPortInUseIsLoggedOnceAndTriedAgain(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		m := metricsOf(full())
		m.Listen, m.Logger = taken.Addr().String(), slog.New(slog.NewTextHandler(&logs, nil))
		runFor(t, m, time.Hour)
		if got := strings.Count(logs.String(), "metrics are not served"); got != 1 {
			t.Errorf("logged %d times: %s", got, logs.String())
		}
	})
}

// runFor runs a sink for that long, in a bubble of synctest.
func runFor(t *testing.T, s Sink, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	time.Sleep(d)
	cancel()
	<-ended
}

func TestIdleConnectionsDoNotPileUp(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &boundedListener{Listener: inner, free: make(chan struct{}, 2)}
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- conn
		}
	}()
	for range 4 {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	first, second := <-accepted, <-accepted
	select {
	case <-accepted:
		t.Error("a third connection was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	_ = first.Close()
	_ = first.Close() // frees its place only once
	third := <-accepted
	select {
	case <-accepted:
		t.Error("a fourth connection was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	_ = second.Close()
	fourth := <-accepted
	_, _ = third.Close(), fourth.Close()
}

func TestTheTextfileIsReplacedAtOnceAndGoesWithTheAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "kured-agent.prom")
		r := New("node-1", "1")
		m := NewMetrics(MetricsOptions{Latest: r.Latest, Textfile: dir, Logger: slog.New(slog.DiscardHandler)})
		r.Add(m)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { r.Run(ctx); close(ended) }()

		r.Update(Update{Phase: "Idle"})
		synctest.Wait()
		reader, err := os.Open(path) // like a collector in the middle of it
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if info, _ := reader.Stat(); info.Mode().Perm() != 0o644 {
			t.Errorf("mode %v", info.Mode())
		}
		r.Update(Update{Phase: "Waiting", Level: plan.Required, Blocked: []Blocker{{"gate", "x", time.Now()}}})
		synctest.Wait()
		content, _ := io.ReadAll(reader)
		if !strings.Contains(string(content), `phase="Idle"`) || strings.Contains(string(content), "Waiting") {
			t.Errorf("the open file changed: %s", content)
		}
		time.Sleep(2*time.Minute + time.Second)
		content, _ = os.ReadFile(path)
		if !strings.Contains(string(content), `kured_agent_blocked_seconds{reason="gate"} 120`) {
			t.Errorf("ages go on while a reboot is required: %s", content)
		}
		cancel()
		<-ended
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

func TestATextfileThatCannotBeWrittenIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		m := metricsOf(full())
		m.Textfile, m.Logger = "/nonexistent/dir", slog.New(slog.NewTextHandler(&logs, nil))
		runFor(t, m, time.Hour)
		if got := strings.Count(logs.String(), "metrics are not written"); got != 1 {
			t.Errorf("logged %d times: %s", got, logs.String())
		}
	})
}
