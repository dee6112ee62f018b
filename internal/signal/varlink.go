// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"
)

const (
	varlinkTimeout = 10 * time.Second
	maxVarlink     = 64 << 10 // of one message
)

// callVarlink calls one method without parameters on a Unix socket and decodes the parameters of its one answer. It is
// all of the protocol that is needed here: JSON objects, each ended by a zero byte. errAbsent: nobody listens.
func callVarlink(ctx context.Context, socket, method string, parameters any) error {
	ctx, cancel := context.WithTimeout(ctx, varlinkTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return errAbsent
	}
	if err != nil {
		return fmt.Errorf("calling %s: %w", method, err)
	}
	defer conn.Close()
	// A service that accepts and never answers holds nobody up, and neither does our own end.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := varlinkExchange(conn, method, parameters); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer: %w", ctx.Err())
		}
		return fmt.Errorf("calling %s: %w", method, err)
	}
	return nil
}

func varlinkExchange(conn io.ReadWriter, method string, parameters any) error {
	call, err := json.Marshal(map[string]any{"method": method, "parameters": struct{}{}})
	if err != nil {
		return err
	}
	if _, err := conn.Write(append(call, 0)); err != nil {
		return err
	}
	message, err := bufio.NewReader(io.LimitReader(conn, maxVarlink)).ReadBytes(0)
	switch {
	case errors.Is(err, io.EOF) && len(message) == maxVarlink:
		return fmt.Errorf("the answer is longer than %d bytes", maxVarlink)
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	}
	return parseVarlink(message[:len(message)-1], parameters)
}

// parseVarlink decodes the parameters of an answer, or returns the error that the answer names.
func parseVarlink(message []byte, parameters any) error {
	var answer struct {
		Error      string          `json:"error"`
		Parameters json.RawMessage `json:"parameters"`
	}
	if err := json.Unmarshal(message, &answer); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if answer.Error != "" {
		return fmt.Errorf("refused: %q", clean(answer.Error, maxBusName))
	}
	if len(answer.Parameters) == 0 {
		return errors.New("the answer has no parameters")
	}
	if err := json.Unmarshal(answer.Parameters, parameters); err != nil {
		return fmt.Errorf("reading the parameters: %w", err)
	}
	return nil
}
