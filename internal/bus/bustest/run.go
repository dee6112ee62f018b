// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"context"
	"testing"
	"time"
)

// Bus is a *bus.Bus, whose own tests use this package too.
type Bus interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
}

// Run runs a Bus until the test ends.
func Run(t testing.TB, b Bus) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("Run does not end with its context")
		}
	})
}

// Connect is Run that returns once the connection stands.
func Connect(t testing.TB, b Bus) {
	t.Helper()
	Run(t, b)
	select {
	case <-b.Ready():
	case <-time.After(10 * time.Second):
		t.Fatal("no connection within 10 s")
	}
}
