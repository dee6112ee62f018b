// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// connect dials, authenticates and says hello, all within one call's timeout: a bus that accepts and never answers held
// PID 1 for 90 s an attempt (systemd/systemd#42981). godbus itself knows no deadline here, so the socket is closed on
// it.
func (b *Bus) connect(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	socket, err := dial(ctx, b.address)
	if err != nil {
		return nil, fmt.Errorf("connecting to the system bus: %w", err)
	}
	giveUp := context.AfterFunc(ctx, func() { _ = socket.Close() })
	defer giveUp()

	s := newSession(b)
	conn, err := dbus.NewConn(socket, dbus.WithSignalHandler(s))
	if err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("connecting to the system bus: %w", err)
	}
	s.conn = conn
	err = conn.Auth(nil)
	if err == nil {
		err = conn.Hello()
	}
	if err == nil && !giveUp() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("the bus accepts and does not answer: %w", ctx.Err())
		}
		return nil, fmt.Errorf("greeting the system bus: %w", err)
	}
	return s, nil
}

// link bounds every write: godbus writes while it holds a lock and without a deadline, so a hung bus with a full socket
// would otherwise hold every caller for ever.
type link struct {
	net.Conn
	r *bufio.Reader
}

func (l *link) Read(p []byte) (int, error) { return l.r.Read(p) }

func (l *link) Write(p []byte) (int, error) {
	if err := l.Conn.SetWriteDeadline(time.Now().Add(callTimeout)); err != nil {
		return 0, err
	}
	n, err := l.Conn.Write(p)
	if err != nil {
		_ = l.Conn.Close() // half a message may be out: the stream is of no more use
	}
	return n, err
}

// dial tries the addresses of a bus address list in order.
func dial(ctx context.Context, addresses string) (*link, error) {
	var errs []error
	for address := range strings.SplitSeq(addresses, ";") {
		path, err := socketPath(address)
		if err == nil {
			var conn net.Conn
			if conn, err = new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
				return &link{Conn: conn, r: bufio.NewReader(conn)}, nil
			}
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// socketPath reads one D-Bus address, "unix:path=…" or "unix:abstract=…", into what net.Dial takes.
func socketPath(address string) (string, error) {
	transport, keys, _ := strings.Cut(address, ":")
	if transport != "unix" {
		return "", fmt.Errorf("reading bus address %q: only unix sockets are supported", address)
	}
	for pair := range strings.SplitSeq(keys, ",") {
		key, value, _ := strings.Cut(pair, "=")
		if key != "path" && key != "abstract" {
			continue
		}
		value, err := url.PathUnescape(value)
		if err != nil || value == "" {
			return "", fmt.Errorf("reading bus address %q: bad value of %s", address, key)
		}
		if key == "abstract" {
			value = "@" + value
		}
		return value, nil
	}
	return "", fmt.Errorf("reading bus address %q: neither path nor abstract is given", address)
}
