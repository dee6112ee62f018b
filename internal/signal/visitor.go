// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"errors"
	"time"

	"github.com/kured-agent/kured-agent/internal/bus"
)

// startTimeout is how long a service that has to be started may take for its answer: fwupd looks at all hardware first.
const startTimeout = time.Minute

// visit is a call for the ask of a visitor.
func visit(start bool, c bus.Call) bus.Call {
	if c.NoAutoStart = !start; start {
		c.Timeout = startTimeout
	}
	return c
}

// visitor is a service that the bus starts when it is asked and that leaves again while it is idle. Its absence says
// nothing: what it said last holds until it is back, since it announces what changes while it is there.
type visitor[T any] struct {
	known bool
	last  T
	asked time.Time // when it was last started only to be asked
	err   error     // what came of that
}

// read asks without starting the service. One that is away and that was not heard since the connection stands is
// started for it, at most once in pollLevel. away says that the answer is the last one.
func (v *visitor[T]) read(ask func(start bool) (T, error)) (answer T, away bool, err error) {
	answer, err = ask(false)
	if errors.Is(err, errAbsent) {
		if v.known {
			return v.last, true, nil
		}
		if !v.asked.IsZero() && time.Since(v.asked) < pollLevel {
			return answer, true, v.err
		}
		v.asked = time.Now()
		answer, err = ask(true)
		v.err = err
	}
	switch {
	case err == nil:
		v.known, v.last = true, answer
	case errors.Is(err, bus.ErrNotConnected) || errors.Is(err, bus.ErrLost):
		v.known, v.asked = false, time.Time{} // it may come and go unseen
	}
	return answer, false, err
}
