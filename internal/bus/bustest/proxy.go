// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
)

// Proxy stands between a client and the bus and can cut the connection at a message.
type Proxy struct {
	Address string

	t      testing.TB
	target string

	mu     sync.Mutex
	marker []byte
	pass   bool
	conns  []net.Conn
}

// NewProxy listens until the test ends.
func NewProxy(d *Daemon) *Proxy {
	d.t.Helper()
	path := filepath.Join(SocketDir(d.t), "proxy")
	l, err := net.Listen("unix", path)
	if err != nil {
		d.t.Fatal(err)
	}
	p := &Proxy{Address: "unix:path=" + path, t: d.t, target: d.Address[len("unix:path="):]}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.connect(client)
		}
	}()
	d.t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.conns {
			_ = c.Close()
		}
	})
	return p
}

// Cut cuts the client's connection at its next message with marker in it, once. The bus gets that message if pass.
func (p *Proxy) Cut(marker string, pass bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marker, p.pass = []byte(marker), pass
}

func (p *Proxy) connect(client net.Conn) {
	server, err := net.Dial("unix", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	p.mu.Unlock()
	go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
	go p.forward(client, server)
}

func (p *Proxy) forward(client, server net.Conn) {
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		if err != nil {
			_ = server.Close()
			return
		}
		cut, pass := p.hit(buf[:n])
		if cut {
			_ = client.Close() // before the bus can answer
		}
		if !cut || pass {
			_, _ = server.Write(buf[:n])
		}
		if cut {
			return
		}
	}
}

func (p *Proxy) hit(data []byte) (cut, pass bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.marker == nil || !bytes.Contains(data, p.marker) {
		return false, false
	}
	p.marker = nil
	return true, p.pass
}
