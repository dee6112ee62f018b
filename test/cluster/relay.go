// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ListenIn listens on a TCP address inside the named network namespace (of /run/netns). A socket keeps the namespace
// of the thread that made it, so the listener can be used from anywhere.
func ListenIn(netns, addr string) (net.Listener, error) {
	type result struct {
		listener net.Listener
		err      error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is in a foreign namespace and ends with the goroutine
		listener, err := enterAndListen(netns, addr)
		made <- result{listener, err}
	}()
	r := <-made
	if r.err != nil {
		return nil, fmt.Errorf("listening on %s in network namespace %q: %w", addr, netns, r.err)
	}
	return r.listener, nil
}

func enterAndListen(netns, addr string) (net.Listener, error) {
	ns, err := os.Open("/run/netns/" + netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	return net.Listen("tcp", addr)
}

// Relay passes every connection of l to the TCP address that target returns at that moment, until l is closed.
func Relay(l net.Listener, target func() string) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			to, err := net.Dial("tcp", target())
			if err != nil {
				return
			}
			defer to.Close()
			go func() {
				_, _ = io.Copy(to, from)
				_ = to.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(from, to)
		}()
	}
}

// ListenIn makes the API server reachable inside a network namespace and returns its URL there. The address must be
// one of the certificate's: 10.88.0.1 or one given with Options.Names.
func (c *Cluster) ListenIn(netns, addr string) string {
	c.t.Helper()
	l, err := ListenIn(netns, addr)
	if err != nil {
		c.t.Fatalf("%v", err)
	}
	c.t.Cleanup(func() { _ = l.Close() })
	go Relay(l, func() string { return c.address })
	return "https://" + addr
}
