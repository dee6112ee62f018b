// SPDX-License-Identifier: Apache-2.0

package window

import (
	"testing"
	"time"
)

var zones = []string{
	"UTC", "Europe/Berlin", "America/St_Johns", "America/Havana", "America/Santiago", "Australia/Lord_Howe",
	"Asia/Kathmandu", "Pacific/Apia", "Pacific/Kiritimati", "Africa/Casablanca",
}

// FuzzAt compares At with a clock that is watched minute by minute.
func FuzzAt(f *testing.F) {
	f.Add(uint8(1), uint8(0x7f), uint16(130), uint16(170), uint8(0), uint8(0), uint16(0), uint16(0), int64(1774742400))
	f.Add(uint8(1), uint8(0x7f), uint16(150), uint16(149), uint8(0), uint8(0), uint16(0), uint16(0), int64(1792886400))
	f.Add(uint8(2), uint8(0x01), uint16(0), uint16(120), uint8(1), uint8(0x7f), uint16(60), uint16(120), int64(1289098800))
	f.Add(uint8(3), uint8(0x7f), uint16(1320), uint16(30), uint8(3), uint8(0x7f), uint16(30), uint16(90),
		int64(1793500000))
	f.Add(uint8(4), uint8(0x40), uint16(1380), uint16(1440), uint8(4), uint8(1), uint16(0), uint16(1), int64(1775300000))
	f.Add(uint8(5), uint8(0x7f), uint16(90), uint16(135), uint8(6), uint8(0x2a), uint16(0), uint16(1439),
		int64(1775300000))
	f.Add(uint8(7), uint8(0x20), uint16(1320), uint16(300), uint8(0), uint8(0), uint16(0), uint16(0), int64(1325200000))
	f.Add(uint8(0), uint8(0x7f), uint16(0), uint16(1440), uint8(0), uint8(0), uint16(0), uint16(0), int64(1775300000))
	f.Add(uint8(9), uint8(0x7f), uint16(150), uint16(1440), uint8(8), uint8(0x55), uint16(7), uint16(7), int64(1773540000))

	f.Fuzz(func(t *testing.T, zone1, days1 uint8, start1, end1 uint16, zone2, days2 uint8, start2, end2 uint16,
		unix int64,
	) {
		ws := []Window{build(t, zone1, days1, start1, end1)}
		if days2 != 0 {
			ws = append(ws, build(t, zone2, days2, start2, end2))
		}
		const from, to = 631152000, 4102444800 // 1990 to 2100: offsets are whole minutes there
		if unix < from {
			unix = -(unix + 1)
		}
		now := time.Unix(from+unix%(to-from), 0).Truncate(time.Minute)

		got := At(ws, now)
		if got.Open != got.Opens.IsZero() && anyDay(ws) {
			t.Errorf("open %v, opens %v", got.Open, got.Opens)
		}
		const days = 9
		open, change := watch(ws, now, days)
		if got.Open != open {
			t.Fatalf("%v at %v: open is %v, the clock says %v", ws, now, got.Open, open)
		}
		said := got.Opens
		if open {
			said = got.Closes
		}
		within := !said.IsZero() && said.Before(now.AddDate(0, 0, days-1))
		if !change.IsZero() && !said.Equal(change) || change.IsZero() && within {
			t.Errorf("%v at %v (open %v): changes at %v, the clock says %v", ws, now, open, said, change)
		}
	})
}

func build(t *testing.T, zone, days uint8, start, end uint16) Window {
	t.Helper()
	location, err := time.LoadLocation(zones[int(zone)%len(zones)])
	if err != nil {
		t.Fatal(err)
	}
	w := Window{Start: Clock(start) % MidnightEnd, End: Clock(end) % (MidnightEnd + 1), Location: location}
	for day := range 7 {
		w.Days[day] = days>>day&1 == 1
	}
	return w
}

func anyDay(ws []Window) bool {
	for _, w := range ws {
		if w.Days != [7]bool{} {
			return true
		}
	}
	return false
}

// watch looks at the local clocks once a minute, from four days before now, and tells whether a window is open at now
// and the first minute at which that changes, zero if it does not within the given days.
func watch(ws []Window, now time.Time, days int) (open bool, change time.Time) {
	latest := make([]time.Time, len(ws)) // the latest local time that each clock has shown, written as UTC
	for t := now.AddDate(0, 0, -4); t.Before(now.AddDate(0, 0, days)); t = t.Add(time.Minute) {
		inside := false
		for i, w := range ws {
			local := t.In(w.Location)
			shown := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), 0, 0, time.UTC)
			if shown.After(latest[i]) {
				latest[i] = shown
			}
			inside = inside || nominal(w, latest[i])
		}
		switch {
		case t.Equal(now):
			open = inside
		case t.After(now) && inside != open:
			return open, t
		}
	}
	return open, time.Time{}
}

// nominal says whether a clock that only ever runs forward is inside the window.
func nominal(w Window, clock time.Time) bool {
	minute := Clock(clock.Hour()*60 + clock.Minute())
	today, yesterday := w.Days[clock.Weekday()], w.Days[(clock.Weekday()+6)%7]
	if w.Start < w.End {
		return today && w.Start <= minute && minute < w.End
	}
	return today && w.Start <= minute || yesterday && minute < w.End
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"mon", "22:00", "24:00", "99:99", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if day, err := ParseDay(s); err == nil && (day < 0 || day > 6) {
			t.Errorf("%q is day %d", s, day)
		}
		if c, err := ParseClock(s); err == nil && (c.String() != s || c >= MidnightEnd) {
			t.Errorf("%q is %v", s, c)
		}
		if c, err := ParseEnd(s); err == nil && (c.String() != s || c > MidnightEnd) {
			t.Errorf("%q is %v", s, c)
		}
	})
}
