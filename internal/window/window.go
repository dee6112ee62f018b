// SPDX-License-Identifier: Apache-2.0

// Package window says whether a moment lies inside the maintenance windows, when the next one opens and when the open
// one closes. It reads no clock and does no I/O.
//
// A window belongs to the day on which it starts: "fri 22:00-05:00" is open on Saturday at 02:00 and closed on Friday
// at 02:00. kured tests the weekday of the present moment instead, which opens such a window on Sunday night.
//
// It opens at the first instant at which the local clock shows the start time or a later one, and closes at the first
// instant at which the local clock shows the end time or a later one. So a time in the hour that daylight saving skips
// stands for the moment of the jump (a window wholly inside that hour does not open that day), and a time in the
// doubled hour stands for its first pass.
package window

import (
	"fmt"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// Clock is a time of day in minutes since midnight, 0 (00:00) to MidnightEnd.
type Clock int

// MidnightEnd is 24:00, the end of a day. It is only an end.
const MidnightEnd Clock = 24 * 60

func (c Clock) String() string { return fmt.Sprintf("%02d:%02d", int(c)/60, int(c)%60) }

// Window is open on each of Days from Start until End. An End that is not after Start is on the following day.
type Window struct {
	Days       [7]bool        // indexed by time.Weekday: the days on which the window starts
	Start, End Clock          // of the local clock in Location
	Location   *time.Location // nil: UTC
}

// String gives the window as an admin would write it: "mon,tue 22:00-05:00 Europe/Berlin".
func (w Window) String() string {
	var days []string
	for i := range 7 {
		day := time.Weekday((i + 1) % 7) // the week starts on Monday
		if w.Days[day] {
			days = append(days, strings.ToLower(day.String()[:3]))
		}
	}
	return fmt.Sprintf("%s %s-%s %s", strings.Join(days, ","), w.Start, w.End, w.location())
}

// horizon bounds the search for an opening or a closing. It spans a year because two zones change their clocks on
// different days: windows that meet seamlessly this week may leave an hour between them in March.
const horizon = 370 // days

// At says where now stands in ws; no windows at all means always open. Windows that overlap or touch count as one:
// Closes is when the last of them closes, and is zero if that does not happen within a year. Times are in the location
// of the window that they come from.
func At(ws []Window, now time.Time) plan.Window {
	if len(ws) == 0 {
		return plan.Window{Open: true}
	}
	closes, open := latestEnd(ws, now)
	if !open {
		return plan.Window{Opens: nextStart(ws, now)}
	}
	last := now.AddDate(0, 0, horizon)
	for open {
		if closes.After(last) {
			return plan.Window{Open: true}
		}
		var end time.Time
		if end, open = latestEnd(ws, closes); open {
			closes = end
		}
	}
	return plan.Window{Open: true, Closes: closes}
}

// latestEnd returns the latest end of the windows that are open at t.
func latestEnd(ws []Window, t time.Time) (end time.Time, open bool) {
	for _, w := range ws {
		// A window reaches into the next day, and a clock set back may show the day before a window that is open already.
		for day := -2; day <= 1; day++ {
			from, to, ok := w.on(t, day)
			if ok && !t.Before(from) && t.Before(to) && to.After(end) {
				end, open = to, true
			}
		}
	}
	return end, open
}

// nextStart returns the first opening after t, a moment at which no window is open; zero if there is none.
func nextStart(ws []Window, t time.Time) (next time.Time) {
	for _, w := range ws {
		for day := -1; day <= horizon; day++ {
			from, to, ok := w.on(t, day)
			if !ok || !from.Before(to) || !from.After(t) {
				continue
			}
			if next.IsZero() || from.Before(next) {
				next = from
			}
			break
		}
	}
	return next
}

// on returns the window that starts the given number of days after the local date of t. It is empty (from equals to)
// when it lies wholly in a skipped hour.
func (w Window) on(t time.Time, day int) (from, to time.Time, ok bool) {
	y, m, d := t.In(w.location()).Date()
	midnight := time.Date(y, m, d+day, 0, 0, 0, 0, time.UTC)
	if !w.Days[midnight.Weekday()] {
		return time.Time{}, time.Time{}, false
	}
	end := w.End
	if end <= w.Start {
		end += MidnightEnd
	}
	return w.reach(midnight, w.Start), w.reach(midnight, end), true
}

// reach returns the first instant at which the local clock shows c on the given date or anything later. The date is a
// midnight in UTC: local times are compared as if they were UTC.
func (w Window) reach(date time.Time, c Clock) time.Time {
	const maxOffset = 26 * time.Hour // more than any zone has ever been off UTC

	wanted := date.Add(time.Duration(c) * time.Minute)
	t := wanted.Add(-maxOffset).In(w.location())
	for {
		_, offset := t.Zone()
		shown := wanted.Add(-time.Duration(offset) * time.Second)
		_, change := t.ZoneBounds()
		switch {
		case shown.Before(t): // the jump to t went past it
			return t
		case change.IsZero() || shown.Before(change):
			return shown.In(w.location())
		}
		t = change
	}
}

func (w Window) location() *time.Location {
	if w.Location == nil {
		return time.UTC
	}
	return w.Location
}
