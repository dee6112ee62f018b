// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"
)

// Activation is what starts a service when somebody calls it while nobody owns its name.
type Activation struct{ started atomic.Int32 }

// Started counts the starts.
func (a *Activation) Started() int { return int(a.started.Load()) }

// Activatable makes the daemon start the owner of name by calling start, usually the Connect of a Service. A nil start
// is a service that never comes. The daemon runs a program, as it must, but one that only leaves a file.
func (d *Daemon) Activatable(name string, start func()) *Activation {
	d.t.Helper()
	touch, err := exec.LookPath("touch")
	if err != nil {
		d.t.Fatal(err)
	}
	dir := filepath.Join(filepath.Dir(d.config), "services")
	mark := filepath.Join(dir, name+".started")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		d.t.Fatal(err)
	}
	service := "[D-BUS Service]\nName=" + name + "\nExec=" + touch + " " + mark + "\n"
	if err := os.WriteFile(filepath.Join(dir, name+".service"), []byte(service), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := d.Connect().BusObject().Call("org.freedesktop.DBus.ReloadConfig", 0).Err; err != nil {
		d.t.Fatal(err)
	}
	a := &Activation{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.run(ctx, mark, start)
	}()
	d.t.Cleanup(func() { cancel(); <-done })
	return a
}

func (a *Activation) run(ctx context.Context, mark string, start func()) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if os.Remove(mark) != nil {
			continue
		}
		a.started.Add(1)
		if start != nil {
			start()
		}
	}
}
