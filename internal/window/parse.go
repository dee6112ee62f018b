// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"strings"
	"time"
)

// ParseDay reads a day of the week: "mon" to "sun" or the full name, in any case.
func ParseDay(s string) (time.Weekday, error) {
	name := strings.ToLower(s)
	for day := time.Sunday; day <= time.Saturday; day++ {
		full := strings.ToLower(day.String())
		if name == full || name == full[:3] {
			return day, nil
		}
	}
	return 0, fmt.Errorf(`%q is not a day: write "mon", "tue", "wed", "thu", "fri", "sat" or "sun"`, s)
}

// ParseClock reads a time of day as HH:MM, from "00:00" to "23:59".
func ParseClock(s string) (Clock, error) {
	c, ok := parseClock(s)
	switch {
	case !ok:
		return 0, fmt.Errorf(`%q is not a time of day: write hours and minutes, such as "06:00" or "22:30"`, s)
	case c == MidnightEnd:
		return 0, fmt.Errorf(`"24:00" is only the end of a day: write "00:00" for its start`)
	}
	return c, nil
}

// ParseEnd reads the end of a window as HH:MM, from "00:00" to "24:00".
func ParseEnd(s string) (Clock, error) {
	c, ok := parseClock(s)
	if !ok {
		return 0, fmt.Errorf(
			`%q is not a time of day: write hours and minutes, such as "06:00" or "22:30", or "24:00" for midnight`, s)
	}
	return c, nil
}

func parseClock(s string) (Clock, bool) {
	if len(s) != len("00:00") || s[2] != ':' {
		return 0, false
	}
	for _, i := range []int{0, 1, 3, 4} {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	hour, minute := int(s[0]-'0')*10+int(s[1]-'0'), int(s[3]-'0')*10+int(s[4]-'0')
	c := Clock(hour*60 + minute)
	return c, minute < 60 && c <= MidnightEnd
}
