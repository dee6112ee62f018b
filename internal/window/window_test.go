// SPDX-License-Identifier: Apache-2.0

package window

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/kured-agent/kured-agent/internal/plan"
)

// parse reads "mon,tue 22:00-05:00 Europe/Berlin".
func parse(t *testing.T, s string) Window {
	t.Helper()
	fields := strings.Fields(s)
	start, end, _ := strings.Cut(fields[1], "-")
	var w Window
	var err error
	for name := range strings.SplitSeq(fields[0], ",") {
		day, err := ParseDay(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Days[day] = true
	}
	if w.Start, err = ParseClock(start); err != nil {
		t.Fatal(err)
	}
	if w.End, err = ParseEnd(end); err != nil {
		t.Fatal(err)
	}
	if w.Location, err = time.LoadLocation(fields[2]); err != nil {
		t.Fatal(err)
	}
	return w
}

// moment reads RFC 3339 without seconds and with its offset; "" is the zero time.
func moment(t *testing.T, s string) time.Time {
	t.Helper()
	if s == "" {
		return time.Time{}
	}
	m, err := time.Parse("2006-01-02 15:04 -0700", s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const everyDay = "mon,tue,wed,thu,fri,sat,sun"

func TestAWindowOpensAndClosesOnTheWallClock(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		windows []string
		now     string
		opens   string // both empty: open and never closing, or closed and never opening
		closes  string
		closed  bool
	}{
		{name: "no window is always open", now: "2026-08-26 12:00 +0000"},

		// The day is the one on which the window starts.
		{
			name: "a Friday night window is open on Saturday morning", windows: []string{"fri 22:00-05:00 UTC"},
			now: "2026-08-29 02:00 +0000", closes: "2026-08-29 05:00 +0000",
		}, {
			name: "a Friday night window is closed on Friday morning", windows: []string{"fri 22:00-05:00 UTC"},
			now: "2026-08-28 02:00 +0000", closed: true, opens: "2026-08-28 22:00 +0000",
		}, {
			name:    "a window of weekdays is closed on Monday before dawn",
			windows: []string{"mon,tue,wed,thu,fri 22:00-05:00 UTC"},
			now:     "2026-08-31 03:00 +0000", closed: true, opens: "2026-08-31 22:00 +0000",
		}, {
			name: "the day is that of the window's zone", windows: []string{"mon 08:00-09:00 Pacific/Auckland"},
			now: "2026-08-30 20:30 +0000", closes: "2026-08-30 21:00 +0000",
		},

		// Edges.
		{
			name: "the start is inside", windows: []string{"wed 10:00-11:00 UTC"},
			now: "2026-08-26 10:00 +0000", closes: "2026-08-26 11:00 +0000",
		}, {
			name: "the end is outside", windows: []string{"wed 10:00-11:00 UTC"},
			now: "2026-08-26 11:00 +0000", closed: true, opens: "2026-09-02 10:00 +0000",
		}, {
			name: "before the start it opens today", windows: []string{"wed 10:00-11:00 UTC"},
			now: "2026-08-26 09:59 +0000", closed: true, opens: "2026-08-26 10:00 +0000",
		}, {
			name:    "the earliest of several opens first",
			windows: []string{"sat 10:00-11:00 UTC", "fri 23:00-24:00 UTC", "sun 00:00-01:00 UTC"},
			now:     "2026-08-26 09:00 +0000", closed: true, opens: "2026-08-28 23:00 +0000",
		}, {
			name: "24:00 ends at midnight", windows: []string{"wed 20:00-24:00 UTC"},
			now: "2026-08-26 23:59 +0000", closes: "2026-08-27 00:00 +0000",
		}, {
			name: "00:00 as an end is the midnight after the start", windows: []string{"wed 20:00-00:00 UTC"},
			now: "2026-08-26 23:59 +0000", closes: "2026-08-27 00:00 +0000",
		}, {
			name: "a whole day", windows: []string{"wed 00:00-24:00 UTC"},
			now: "2026-08-26 12:00 +0000", closes: "2026-08-27 00:00 +0000",
		}, {
			name: "over the new year", windows: []string{"thu 22:00-05:00 UTC"},
			now: "2027-01-01 01:00 +0000", closes: "2027-01-01 05:00 +0000",
		},

		// Merging.
		{
			name: "touching days close with the last", windows: []string{"fri,sat 00:00-24:00 UTC"},
			now: "2026-08-28 12:00 +0000", closes: "2026-08-30 00:00 +0000",
		}, {
			name:    "overlapping windows close with the last",
			windows: []string{"wed 10:00-12:00 UTC", "wed 11:00-13:00 UTC", "wed 13:00-14:00 UTC"},
			now:     "2026-08-26 10:30 +0000", closes: "2026-08-26 14:00 +0000",
		}, {
			name:    "a window inside another does not shorten it",
			windows: []string{"wed 10:00-14:00 UTC", "wed 11:00-12:00 UTC"},
			now:     "2026-08-26 11:30 +0000", closes: "2026-08-26 14:00 +0000",
		}, {
			name:    "a minute between two windows is closed",
			windows: []string{"wed 10:00-11:00 UTC", "wed 11:01-12:00 UTC"},
			now:     "2026-08-26 10:30 +0000", closes: "2026-08-26 11:00 +0000",
		}, {
			name:    "windows of two zones merge",
			windows: []string{"wed 10:00-12:00 UTC", "wed 17:00-18:00 Asia/Kolkata"},
			now:     "2026-08-26 10:30 +0000", closes: "2026-08-26 12:30 +0000",
		}, {
			name: "every whole day never closes", windows: []string{everyDay + " 00:00-24:00 Europe/Berlin"},
			now: "2026-08-26 10:30 +0000",
		}, {
			name:    "two halves of every day never close",
			windows: []string{everyDay + " 05:00-17:00 UTC", everyDay + " 17:00-05:00 UTC"},
			now:     "2026-08-26 10:30 +0000",
		}, {
			name:    "two zones that meet until one of them changes its clock",
			windows: []string{everyDay + " 00:00-23:00 UTC", everyDay + " 00:00-01:00 Europe/Berlin"}, // CET only
			now:     "2027-01-10 10:30 +0000", closes: "2027-03-28 23:00 +0000",
		},

		// Daylight saving, spring: Berlin 2026-03-29 02:00 CET becomes 03:00 CEST.
		{
			name: "a start in the missing hour opens at the jump", windows: []string{"sun 02:30-05:00 Europe/Berlin"},
			now: "2026-03-29 01:59 +0100", closed: true, opens: "2026-03-29 03:00 +0200",
		}, {
			name: "an end in the missing hour closes at the jump", windows: []string{"sat 22:00-02:30 Europe/Berlin"},
			now: "2026-03-29 01:59 +0100", closes: "2026-03-29 03:00 +0200",
		}, {
			name:    "a window wholly in the missing hour opens a week later",
			windows: []string{"sun 02:10-02:50 Europe/Berlin"},
			now:     "2026-03-29 01:59 +0100", closed: true, opens: "2026-04-05 02:10 +0200",
		}, {
			name: "a window over the jump is an hour shorter", windows: []string{"sat 22:00-05:00 Europe/Berlin"},
			now: "2026-03-28 22:00 +0100", closes: "2026-03-29 05:00 +0200",
		},

		// Autumn: Berlin 2026-10-25 03:00 CEST becomes 02:00 CET.
		{
			name:    "a start in the doubled hour opens at its first pass",
			windows: []string{"sun 02:30-05:00 Europe/Berlin"},
			now:     "2026-10-25 01:00 +0200", closed: true, opens: "2026-10-25 02:30 +0200",
		}, {
			name: "and stays open through the second", windows: []string{"sun 02:30-05:00 Europe/Berlin"},
			now: "2026-10-25 02:10 +0100", closes: "2026-10-25 05:00 +0100",
		}, {
			name:    "an end in the doubled hour closes at its first pass",
			windows: []string{"sat 22:00-02:30 Europe/Berlin"},
			now:     "2026-10-25 02:29 +0200", closes: "2026-10-25 02:30 +0200",
		}, {
			name: "and stays closed in the second", windows: []string{"sat 22:00-02:30 Europe/Berlin"},
			now: "2026-10-25 02:10 +0100", closed: true, opens: "2026-10-31 22:00 +0100",
		},
		{
			name: "Newfoundland set its clock back to the day before a window that was open already",
			// 2010-11-07 00:01 -0230 became 2010-11-06 23:01 -0330.
			windows: []string{"sun 00:00-02:00 America/St_Johns"},
			now:     "2010-11-06 23:30 -0330", closes: "2010-11-07 02:00 -0330",
		}, {
			name: "Lord Howe Island shifts by half an hour", windows: []string{"sun 02:15-04:00 Australia/Lord_Howe"},
			now: "2026-10-04 01:59 +1030", closed: true, opens: "2026-10-04 02:30 +1100",
		}, {
			name: "Samoa skipped a Friday", windows: []string{"thu 22:00-05:00 Pacific/Apia"},
			now: "2011-12-29 23:00 -1000", closes: "2011-12-31 00:00 +1400",
		}, {
			name: "a zone of 45 minutes", windows: []string{"wed 22:00-05:00 Asia/Kathmandu"},
			now: "2026-08-26 16:15 +0000", closes: "2026-08-26 23:15 +0000",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var ws []Window
			for _, s := range test.windows {
				ws = append(ws, parse(t, s))
			}
			got := At(ws, moment(t, test.now))
			want := plan.Window{Open: !test.closed, Opens: moment(t, test.opens), Closes: moment(t, test.closes)}
			if got.Open != want.Open || !got.Opens.Equal(want.Opens) || !got.Closes.Equal(want.Closes) {
				t.Errorf("got  open %v, opens %v, closes %v\nwant open %v, opens %v, closes %v",
					got.Open, got.Opens, got.Closes, want.Open, want.Opens, want.Closes)
			}
		})
	}
}

func TestSecondsBelongToTheirMinute(t *testing.T) {
	t.Parallel()
	ws := []Window{parse(t, "wed 10:00-11:00 UTC")}
	if got := At(ws, moment(t, "2026-08-26 11:00 +0000").Add(-time.Nanosecond)); !got.Open {
		t.Error("closed in the last nanosecond")
	}
}

func TestTheZeroWindowNeverOpensAndDoesNotPanic(t *testing.T) {
	t.Parallel()
	if got := At([]Window{{}}, time.Unix(0, 0)); got != (plan.Window{}) {
		t.Errorf("got %+v", got)
	}
}

func TestTimesCarryTheZoneOfTheirWindow(t *testing.T) {
	t.Parallel()
	got := At([]Window{parse(t, "wed 10:00-11:00 Europe/Berlin")}, moment(t, "2026-08-26 07:00 +0000"))
	if s := got.Opens.Format(time.RFC3339); s != "2026-08-26T10:00:00+02:00" {
		t.Error(s)
	}
}

func TestDaysAreReadInFullAndInShort(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]time.Weekday{
		"mon": time.Monday, "Tue": time.Tuesday, "WED": time.Wednesday, "thursday": time.Thursday,
		"Friday": time.Friday, "SATURDAY": time.Saturday, "sun": time.Sunday,
	} {
		if got, err := ParseDay(s); err != nil || got != want {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "mo", "m", "1", " mon", "mond", "mon-fri", "lundi"} {
		if _, err := ParseDay(s); err == nil || !strings.Contains(err.Error(), `"mon"`) {
			t.Errorf("%q: error is %v", s, err)
		}
	}
}

func TestClockTimesAreReadAsTheyArePrinted(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]Clock{"00:00": 0, "05:07": 307, "22:00": 1320, "23:59": 1439} {
		if got, err := ParseClock(s); err != nil || got != want || got.String() != s {
			t.Errorf("%q: %v, %v", s, got, err)
		}
		if got, err := ParseEnd(s); err != nil || got != want {
			t.Errorf("%q as an end: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "7:00", "5:00pm", "0500", "24:01", "25:00", "12:60", "-1:00", "22:00:00", "22.00", "٢٢:٠٠", "ab:cd",
	} {
		if _, err := ParseClock(s); err == nil || !strings.Contains(err.Error(), `"22:30"`) {
			t.Errorf("%q: error is %v", s, err)
		}
		if _, err := ParseEnd(s); err == nil || !strings.Contains(err.Error(), `"24:00"`) {
			t.Errorf("%q as an end: error is %v", s, err)
		}
	}
}

func TestMidnightIsTwentyFourHundredOnlyAsAnEnd(t *testing.T) {
	t.Parallel()
	if _, err := ParseClock("24:00"); err == nil || !strings.Contains(err.Error(), `"00:00"`) {
		t.Errorf("as a start: error is %v", err)
	}
	if got, err := ParseEnd("24:00"); err != nil || got != MidnightEnd {
		t.Errorf("as an end: %v, %v", got, err)
	}
}

func TestAWindowPrintsAsItIsWritten(t *testing.T) {
	t.Parallel()
	const s = "mon,sat,sun 22:00-24:00 Europe/Berlin"
	if got := parse(t, s).String(); got != s {
		t.Error(got)
	}
}
