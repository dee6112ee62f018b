// SPDX-License-Identifier: Apache-2.0

package plan

import "testing"

func TestTheRebootIsNeverLessThanTheReasonNeedsAndOnlyWhatTheHostCanDo(t *testing.T) {
	t.Parallel()
	const auto = Kind(0)
	of := func(kinds ...Kind) (reasons []Reason) {
		for _, k := range kinds {
			reasons = append(reasons, Reason{ID: k.String(), Kind: k})
		}
		return reasons
	}
	all := []Kind{KindSoft, KindKexec, KindFull}
	for _, c := range []struct {
		method  Kind
		reasons []Reason
		able    []Kind
		want    Kind
	}{
		{auto, of(KindSoft), all, KindSoft},
		{auto, of(KindSoft, KindKexec), all, KindKexec},
		{auto, of(KindSoft, KindFull), all, KindFull},
		{auto, of(KindSoft), []Kind{KindKexec, KindFull}, KindKexec},
		{auto, of(KindSoft), []Kind{KindFull}, KindFull},
		{auto, of(KindKexec), []Kind{KindSoft}, KindFull},
		{auto, nil, all, KindFull},
		{KindSoft, of(KindFull), all, KindFull},
		{KindSoft, of(KindSoft), all, KindSoft},
		{KindKexec, of(KindSoft), all, KindKexec},
		{KindKexec, of(KindKexec), nil, KindFull},
		{KindFull, of(KindSoft), all, KindFull},
		{auto, of(Kind(9)), all, KindFull},
	} {
		if got := RebootKind(c.method, c.reasons, c.able); got != c.want {
			t.Errorf("method %v, reasons %v, able %v: got %v, want %v", c.method, c.reasons, c.able, got, c.want)
		}
	}
}
