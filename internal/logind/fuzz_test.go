// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
)

func FuzzInhibitors(f *testing.F) {
	f.Add("shutdown", "apt", "why", "block", uint32(0), uint32(1), uint8(6))
	f.Fuzz(func(t *testing.T, what, who, why, mode string, uid, pid uint32, shape uint8) {
		fields := []any{what, who, why, mode, uid, pid}
		if shape%8 < 6 {
			fields[shape%8] = nil
		}
		fields = fields[:min(len(fields), int(shape))]
		for _, body := range [][]any{{[][]any{fields}}, {fields}, fields, nil} {
			checkInhibitors(t, body)
		}
	})
}

func checkInhibitors(t *testing.T, body []any) {
	t.Helper()
	holders, err := parseInhibitors(body)
	if err != nil && holders != nil {
		t.Error("both an answer and an error")
	}
	for _, h := range holders {
		if len(h) > 2*maxText+64 || strings.ContainsAny(h, "\n\x1b") {
			t.Errorf("%q", h)
		}
	}
}

// FuzzBodies gives every decoder of this package a body of any shape.
func FuzzBodies(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x01\x00\x03yes"))                                                    // s
	f.Add([]byte("\x01\x04\x01"))                                                       // b
	f.Add([]byte("\x01\x0f\x02\x00\x06reboot\x0d\x08\x00\x0e\x93\x00\x00\x00\x00\x00")) // (st)
	f.Add([]byte("\x01\x10\x01\x06\x00\x08shutdown\x00\x03apt\x00\x01y\x00\x05block\x0a\x00\x0a\x01\x07"))
	f.Fuzz(func(t *testing.T, data []byte) {
		body := bustest.Body(data)
		checkInhibitors(t, body)
		if answer, err := parseForecast(body); err == nil && (len(answer) > maxText || strings.Contains(answer, `"`)) {
			t.Errorf("forecast %q", answer)
		}
		if active, ok := parsePrepare(body); active && !ok {
			t.Error("both an answer and none")
		}
		for _, v := range append(body, body, nil) {
			what, usec, err := parseScheduled(v)
			if err != nil && (what != "" || usec != 0) || len(what) > maxText {
				t.Errorf("scheduled %q, %d, %v", what, usec, err)
			}
			if s, ok := v.(string); ok {
				if version, ok := parseVersion(s); ok && version <= 0 {
					t.Errorf("version %d of %q", version, s)
				}
			}
		}
	})
}

// FuzzErrors: an error of any name and body has a class that prints.
func FuzzErrors(f *testing.F) {
	f.Add(accessDenied, []byte("\x01\x00\x03yes"))
	f.Add("", []byte{})
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		err := dbus.Error{Name: name, Body: bustest.Body(data)}
		if text := (&RefusedError{classify(err), err}).Error(); text == "" {
			t.Error("an error without a text")
		}
	})
}
