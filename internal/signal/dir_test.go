// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWithoutInotifyADirectoryIsHintedAtByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hint, tries, told := newHints(), 0, 0
		go keepHinting(t.Context(), hint,
			func() error { tries++; return errors.New("too many open files") },
			func(error) { told++ })
		began := time.Now()
		for range 3 {
			<-hint
		}
		synctest.Wait() // the next try has failed too
		if passed := time.Since(began); passed != 3*pollFile || tries != 4 || told != 1 {
			t.Errorf("%d tries in %v, told %d times", tries, passed, told)
		}
	})
}
