// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// keepWhileAway wraps read for a service that leaves the bus when it has nothing to do, and that has to be on it for a
// need to be taken back: while it is away, the need holds.
func keepWhileAway(read func(context.Context) (State, error)) func(context.Context) (State, error) {
	var last State
	return func(ctx context.Context) (State, error) {
		s, err := read(ctx)
		switch {
		case err == nil:
			last = s
		case errors.Is(err, errAbsent) && last.Level == plan.Required:
			last.Note = "the service has left the bus since"
			return last, nil
		}
		return s, err
	}
}
