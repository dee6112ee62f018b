// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
)

func TestAVarlinkServiceIsAskedOnceAndItsAnswerIsBounded(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"an answer":         {`{"parameters":{"RebootStatus":2}}` + "\x00", ""},
		"more than one":     {`{"parameters":{"RebootStatus":2}}` + "\x00{}\x00", ""},
		"an error":          {`{"error":"org.varlink.service.MethodNotFound","parameters":{}}` + "\x00", "MethodNotFound"},
		"no parameters":     {"{}\x00", "no parameters"},
		"no JSON":           {"\x01\x02\x00", "reading the answer"},
		"an array":          {"[]\x00", "reading the answer"},
		"another type":      {`{"parameters":{"RebootStatus":"two"}}` + "\x00", "reading the parameters"},
		"without an end":    {strings.Repeat("x", maxVarlink+1), "longer than"},
		"an empty message":  {"\x00", "reading the answer"},
		"deep in the stack": {strings.Repeat("[", maxVarlink/2) + "\x00", "reading the answer"},
	} {
		t.Run(name, func(t *testing.T) {
			v := bustest.NewVarlink(t, filepath.Join(bustest.SocketDir(t), "socket"))
			v.Answer(c.answer)
			var status rebootmgrStatus
			err := callVarlink(t.Context(), v.Path(), "org.example.Status", &status)
			if c.want == "" && (err != nil || status.Status == nil || *status.Status != 2) {
				t.Errorf("status %v, %v", status.Status, err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if calls := v.Calls(); len(calls) != 1 || calls[0] != "org.example.Status" {
				t.Errorf("calls %v", calls)
			}
		})
	}
}

func TestAVarlinkServiceThatNeverAnswersHoldsNobody(t *testing.T) {
	v := bustest.NewVarlink(t, filepath.Join(bustest.SocketDir(t), "socket"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := callVarlink(ctx, v.Path(), "org.example.Status", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestAVarlinkServiceThatHangsUpIsAFailureAndOneThatIsAwayIsAbsent(t *testing.T) {
	path := filepath.Join(bustest.SocketDir(t), "socket")
	if err := callVarlink(t.Context(), path, "org.example.Status", nil); !errors.Is(err, errAbsent) {
		t.Errorf("no socket: %v", err)
	}
	v := bustest.NewVarlink(t, path)
	failed := make(chan error, 1)
	go func() { failed <- callVarlink(t.Context(), path, "org.example.Status", nil) }()
	bustest.Eventually(t, "the call", func() bool { return len(v.Calls()) == 1 })
	v.Close()
	if err := <-failed; err == nil || errors.Is(err, errAbsent) {
		t.Errorf("hung up: %v", err)
	}
	if err := callVarlink(t.Context(), path, "org.example.Status", nil); !errors.Is(err, errAbsent) {
		t.Errorf("a socket that nobody listens on: %v", err)
	}
}

func FuzzVarlink(f *testing.F) {
	f.Add([]byte(`{"parameters":{"RebootStatus":2,"RequestedMethod":2,"RebootTime":"x","RebootDisabled":true}}`))
	f.Add([]byte(`{"error":"a.b","parameters":null}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		var status rebootmgrStatus
		if parseVarlink(message, &status) != nil {
			return
		}
		if s, err := status.state(); err == nil {
			bound("rebootmgr", s)
		}
	})
}
