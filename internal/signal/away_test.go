// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kured-agent/kured-agent/internal/plan"
)

func TestAServiceThatIdlesOutTakesNothingBackByThat(t *testing.T) {
	var state State
	var err error
	read := keepWhileAway(func(context.Context) (State, error) { return state, err })
	expect := func(when string, s State, e error, level plan.Level, wantErr error) {
		t.Helper()
		state, err = s, e
		got, gotErr := read(t.Context())
		kept := level != plan.Required || slices.Equal(ids(got), []string{"a"})
		if got.Level != level || !errors.Is(gotErr, wantErr) || !kept {
			t.Errorf("%s: %+v, %v", when, got, gotErr)
		}
	}
	expect("absent from the start", State{}, errAbsent, plan.NotRequired, errAbsent)
	expect("required", required("a"), nil, plan.Required, nil)
	expect("broken", State{}, broken.Err, plan.NotRequired, broken.Err)
	for range 3 {
		expect("left", State{}, errAbsent, plan.Required, nil)
	}
	expect("taken back", idle, nil, plan.NotRequired, nil)
	expect("left without a need", State{}, errAbsent, plan.NotRequired, errAbsent)
}
