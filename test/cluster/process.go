// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// process is one running part. It dies with this program (Pdeathsig), so a killed test leaves nothing behind.
type process struct {
	name, log string
	cmd       *exec.Cmd
	done      chan struct{} // closed when it has ended
}

// start runs argv in dir with its output in the file log.
func start(name, dir, log string, argv ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig is sent when the creating thread ends: keep that thread as long as the process lives.
		runtime.LockOSThread()
		defer close(p.done)
		defer out.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		runtime.UnlockOSThread()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// pause stops the process and returns when it stands: the signal is taken a moment later, thread by thread.
func (p *process) pause() {
	p.signal(syscall.SIGSTOP)
	for deadline := time.Now().Add(5 * time.Second); !p.stands() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// stands says whether every thread is stopped.
func (p *process) stands() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	return err == nil && !slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(stat), ") ") // the name before it may contain anything
		return err == nil && !strings.HasPrefix(rest, "T")
	})
}

// stop asks with SIGTERM and insists with SIGKILL after grace.
func (p *process) stop(grace time.Duration) {
	if grace > 0 {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.done:
			return
		case <-time.After(grace):
		}
	}
	p.signal(syscall.SIGKILL)
	<-p.done
}

// tail returns the last lines of the log.
func (p *process) tail(lines int) string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
