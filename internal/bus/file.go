// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/godbus/dbus/v5"
)

// Serial numbers of the only two messages that a fileLink sends.
const (
	helloSerial = 1
	callSerial  = 2
)

// maxFiles is how many descriptors the kernel passes in one message (SCM_MAX_FD).
const maxFiles = 253

var errNotAFile = errors.New("the answer is not a file descriptor")

// CallFile is Call for a method that answers with one file descriptor, which no program that this one starts inherits.
//
// The one call has a connection of its own, and speaks the protocol itself: any local user may send us descriptors, and
// godbus closes none that it does not know what to do with. Here all of them are closed but the one in the answer.
func (b *Bus) CallFile(ctx context.Context, c Call) (*os.File, error) {
	file, err := b.callFile(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("calling %s on %s: %w", c.Member, c.Destination, err)
	}
	return file, nil
}

func (b *Bus) callFile(ctx context.Context, c Call) (*os.File, error) {
	if b.current() == nil {
		return nil, ErrNotConnected // whoever has no signals should hold no lock either
	}
	if c.Timeout == 0 {
		c.Timeout = b.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	request, err := encodeAll(Call{Destination: busName, Path: busPath, Member: busName + ".Hello"}, c)
	if err != nil {
		return nil, err
	}
	socket, err := dial(ctx, b.address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, err)
	}
	defer socket.Close()
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()

	f := newFileLink(socket)
	defer f.close()
	if err := f.greet(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotConnected, cmp.Or(ctx.Err(), err))
	}
	file, err := f.ask(request)
	switch {
	case err == nil || isReply(err) || errors.Is(err, errNotAFile):
		return file, err
	case ctx.Err() != nil:
		return nil, fmt.Errorf("no answer: %w", ctx.Err())
	}
	return nil, fmt.Errorf("%w: %w", ErrLost, err)
}

// fileLink reads what the bus sends together with the descriptors that come along.
type fileLink struct {
	link *link
	in   *bufio.Reader
	// files are the descriptors received and not yet taken. They come in the order of the messages that they belong to,
	// and never after the first byte of their message.
	files []int
	oob   []byte
}

func newFileLink(l *link) *fileLink {
	f := &fileLink{link: l, oob: make([]byte, syscall.CmsgSpace(maxFiles*4))}
	f.in = bufio.NewReader(f)
	return f
}

// Read implements io.Reader. The descriptors are close-on-exec, as all that the net package receives.
func (f *fileLink) Read(p []byte) (int, error) {
	socket, ok := f.link.Conn.(*net.UnixConn)
	if !ok {
		return 0, errors.New("the bus is not a Unix socket")
	}
	n, oobn, flags, _, err := socket.ReadMsgUnix(p, f.oob)
	n, oobn = max(n, 0), max(oobn, 0) // -1 beside an error
	messages, parseErr := syscall.ParseSocketControlMessage(f.oob[:oobn])
	for _, m := range messages {
		if files, err := syscall.ParseUnixRights(&m); err == nil {
			f.files = append(f.files, files...)
		}
	}
	if err == nil && flags&syscall.MSG_CTRUNC != 0 {
		err = errors.New("more descriptors than a message may carry")
	}
	return n, errors.Join(err, parseErr)
}

// close closes the descriptors that nobody took.
func (f *fileLink) close() {
	closeAll(f.files)
	f.files = nil
}

// greet authenticates as our user and asks for descriptors.
func (f *fileLink) greet() error {
	uid := hex.EncodeToString([]byte(strconv.Itoa(os.Geteuid())))
	for _, step := range [][2]string{
		{"\x00AUTH EXTERNAL " + uid, "OK "},
		{"NEGOTIATE_UNIX_FD", "AGREE_UNIX_FD"},
		{"BEGIN", ""},
	} {
		if _, err := io.WriteString(f.link, step[0]+"\r\n"); err != nil {
			return err
		}
		if step[1] == "" {
			break
		}
		line, err := f.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(line, []byte(step[1])) {
			return fmt.Errorf("the bus answers %q where %q is expected", line, step[1])
		}
	}
	return nil
}

// ask sends both messages and reads until the second is answered.
func (f *fileLink) ask(request []byte) (*os.File, error) {
	if _, err := f.link.Write(request); err != nil {
		return nil, err
	}
	for {
		msg, err := dbus.DecodeMessage(f.in)
		if err != nil {
			return nil, err
		}
		files, err := f.take(msg)
		if err != nil {
			return nil, err
		}
		serial, _ := msg.Headers[dbus.FieldReplySerial].Value().(uint32)
		switch {
		case msg.Type == dbus.TypeError && (serial == helloSerial || serial == callSerial):
			closeAll(files)
			name, _ := msg.Headers[dbus.FieldErrorName].Value().(string)
			return nil, refusal(dbus.Error{Name: name, Body: msg.Body})
		case msg.Type == dbus.TypeMethodReply && serial == callSerial:
			return pick(msg.Body, files)
		}
		closeAll(files) // of a stranger
	}
}

// take returns the descriptors that belong to msg, the next message.
func (f *fileLink) take(msg *dbus.Message) ([]int, error) {
	n, _ := msg.Headers[dbus.FieldUnixFDs].Value().(uint32)
	if uint64(n) > uint64(len(f.files)) {
		return nil, errors.New("descriptors of a message are missing")
	}
	files := f.files[:n]
	f.files = f.files[n:]
	return files, nil
}

// pick returns the descriptor that body, one h, points to, and closes the others.
func pick(body []any, files []int) (*os.File, error) {
	index, ok := first[dbus.UnixFDIndex](body)
	if !ok || len(body) != 1 || uint64(index) >= uint64(len(files)) {
		closeAll(files)
		return nil, errNotAFile
	}
	closeAll(files[:index])
	closeAll(files[index+1:])
	return os.NewFile(uintptr(files[index]), "bus answer"), nil
}

func closeAll(files []int) {
	for _, fd := range files {
		_ = syscall.Close(fd)
	}
}

// encodeAll renders calls with the serial numbers 1, 2 and so on.
func encodeAll(calls ...Call) ([]byte, error) {
	var all []byte
	for i, c := range calls {
		one, err := encode(uint32(i+1), c)
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}

// encode renders a method call with a serial number, which godbus gives only to what it sends itself.
func encode(serial uint32, c Call) ([]byte, error) {
	dot := strings.LastIndexByte(c.Member, '.')
	msg := &dbus.Message{
		Type: dbus.TypeMethodCall,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant(c.Destination),
			dbus.FieldPath:        dbus.MakeVariant(dbus.ObjectPath(c.Path)),
			dbus.FieldInterface:   dbus.MakeVariant(c.Member[:max(dot, 0)]),
			dbus.FieldMember:      dbus.MakeVariant(c.Member[dot+1:]),
		},
		Body: c.Args,
	}
	if c.NoAutoStart {
		msg.Flags = dbus.FlagNoAutoStart
	}
	if len(c.Args) > 0 {
		msg.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(c.Args...))
	}
	var out bytes.Buffer
	if err := msg.EncodeTo(&out, binary.LittleEndian); err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(out.Bytes()[8:], serial) // after byte order, type, flags, version and body length
	return out.Bytes(), nil
}
