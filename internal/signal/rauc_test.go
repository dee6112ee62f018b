// SPDX-License-Identifier: Apache-2.0

package signal

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/plan"
)

func TestAnInstalledSlotRequiresAReboot(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRAUC(d)
	p := start(t, Env{Bus: startBus(t, d)}, "rauc", nil)
	if s := p.becomes("at start", plan.NotRequired); s.Note != "booted from rootfs.0" {
		t.Errorf("note %q", s.Note)
	}
	service.Begin()
	p.shows("installing", func(s State) bool { return s.Level == plan.Unknown && errors.Is(s.Err, errInstalling) })
	service.SetPrimary("rootfs.1", "bundle.version", "2.0", "sha256", "4711")
	service.Complete(0)
	s := p.becomes("installed", plan.Required)
	want := plan.Reason{Source: "rauc", ID: "4711", Kind: plan.KindFull,
		Text: "RAUC: version 2.0 is installed in slot rootfs.1, booted is rootfs.0"}
	if !slices.Equal(s.Reasons, []plan.Reason{want}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	service.Begin()
	p.becomes("installing once more", plan.Unknown)
	service.Complete(1)
	p.becomes("that failed", plan.Required)
	service.SetPrimary("rootfs.0")
	service.Complete(0)
	p.becomes("the booted slot is primary again", plan.NotRequired)
}

func TestAnUpdateOfArtifactsAloneDoesNotCount(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRAUC(d)
	p := start(t, Env{Bus: startBus(t, d)}, "rauc", nil)
	p.becomes("at start", plan.NotRequired)
	service.Begin()
	p.becomes("installing", plan.Unknown)
	service.Complete(0)
	p.becomes("completed", plan.NotRequired)
}

func TestASlotThatWasInstalledBeforeTheStartIsReadAndRAUCIsNotStarted(t *testing.T) {
	d := bustest.Start(t)
	activation := d.Activatable(raucName, nil)
	p := start(t, Env{Bus: startBus(t, d)}, "rauc", nil)
	if s := p.becomes("absent", plan.NotRequired); s.Note != "service absent" {
		t.Errorf("note %q", s.Note)
	}
	service := bustest.NewRAUC(d)
	service.SetPrimary("rootfs.1")
	service.Connect()
	if s := p.becomes("it came", plan.Required); !slices.Equal(ids(s), []string{"rootfs.1"}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
	service.Disconnect()
	s := p.shows("it left", func(s State) bool { return s.Note != "" })
	if s.Level != plan.Required || !slices.Equal(ids(s), []string{"rootfs.1"}) {
		t.Errorf("state %+v", s)
	}
	service.SetPrimary("rootfs.0")
	service.Connect()
	p.becomes("back without the need", plan.NotRequired)
	if n := activation.Started(); n != 0 {
		t.Errorf("RAUC was started %d times", n)
	}
}

func TestRAUCIsReadAgainAfterTheBusWasAwayAndForgeriesDoNotCount(t *testing.T) {
	d := bustest.Start(t)
	service := bustest.NewRAUC(d)
	b := startBus(t, d)
	p := start(t, Env{Bus: b}, "rauc", nil)
	p.becomes("at start", plan.NotRequired)
	stranger := bustest.NewStranger(d)
	for _, body := range [][]any{{int32(0)}, {}, {"x"}} {
		stranger.Forge(raucPath, raucIface+".Completed", body...)
	}
	bustest.Eventually(t, "the forgeries counted", func() bool { return b.Dropped() == 3 })
	d.Kill()
	p.becomes("the bus is away", plan.Unknown)
	service.SetPrimary("rootfs.1", "bundle.hash", "abc", "sha256", "def")
	d.Restart()
	service.Connect()
	if s := p.becomes("back", plan.Required); !slices.Equal(ids(s), []string{"abc"}) {
		t.Errorf("reasons %+v", s.Reasons)
	}
}

func TestWhatRAUCCannotSayIsUnknown(t *testing.T) {
	for _, method := range []string{"GetPrimary", "GetSlotStatus", "Get"} {
		d := bustest.Start(t)
		service := bustest.NewRAUC(d)
		service.SetPrimary("rootfs.1")
		service.On(method, bustest.Refuse("org.freedesktop.DBus.Error.Failed", "bootloader 'noop' not supported yet"))
		p := start(t, Env{Bus: startBus(t, d)}, "rauc", nil)
		if s := p.becomes(method, plan.Unknown); !strings.Contains(message(s.Err), "not supported yet") {
			t.Errorf("error %v", s.Err)
		}
	}
	d := bustest.StartPolicy(t, `<policy context="default"><deny send_destination="de.pengutronix.rauc"/></policy>`)
	bustest.NewRAUC(d)
	p := start(t, Env{Bus: startBus(t, d)}, "rauc", nil)
	if s := p.becomes("denied", plan.Unknown); !strings.Contains(message(s.Err), raucDenied) {
		t.Errorf("error %v", s.Err)
	}
}

func TestAnswersOfRAUCAreChecked(t *testing.T) {
	text := func(kv ...string) map[string]dbus.Variant {
		m := map[string]dbus.Variant{"size": dbus.MakeVariant(uint64(7))}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = dbus.MakeVariant(kv[i+1])
		}
		return m
	}
	number := map[string]dbus.Variant{"state": dbus.MakeVariant(1)}
	booted := []any{"a", text("state", "booted")}
	other := []any{"b", text("state", "inactive", "bundle.version", "2")}
	for name, c := range map[string]struct {
		primary, slots []any
		want           plan.Level
	}{
		"another slot":       {[]any{"b"}, []any{[][]any{booted, other}}, plan.Required},
		"the booted one":     {[]any{"a"}, []any{[][]any{booted, other}}, plan.NotRequired},
		"booted elsewhere":   {[]any{"b"}, []any{[][]any{other}}, plan.NotRequired},
		"not in the status":  {[]any{"c"}, []any{[][]any{booted, other}}, plan.Unknown},
		"no primary":         {[]any{}, []any{[][]any{booted, other}}, plan.Unknown},
		"primary a number":   {[]any{int32(1)}, []any{[][]any{booted}}, plan.Unknown},
		"no slots":           {[]any{"a"}, []any{}, plan.Unknown},
		"slots a string":     {[]any{"a"}, []any{"a"}, plan.Unknown},
		"a slot of one":      {[]any{"a"}, []any{[][]any{{"a"}}}, plan.Unknown},
		"a slot of strings":  {[]any{"a"}, []any{[][]any{{"a", "b"}}}, plan.Unknown},
		"a state of numbers": {[]any{"a"}, []any{[][]any{{"a", number}}}, plan.NotRequired},
	} {
		s, err := compareSlots(c.primary, c.slots)
		if s.Level != c.want && !(c.want == plan.Unknown && err != nil) || err != nil && c.want != plan.Unknown {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func FuzzSlots(f *testing.F) {
	f.Add("rootfs.1", "rootfs.0", "booted", "2.0", uint8(1), uint8(0))
	f.Fuzz(func(t *testing.T, primary, name, state, version string, length, shape uint8) {
		dict := map[string]dbus.Variant{
			"state": dbus.MakeVariant(state), "bundle.version": dbus.MakeVariant(version), "n": dbus.MakeVariant(uint32(1)),
		}
		tuples := [][]any{{name, dict}, {primary, map[string]dbus.Variant{}}, {name}, {dict, name}, {}, nil}
		list := [][]any{tuples[0]}
		for i := range int(length % 4) {
			list = append(list, tuples[(i+int(shape))%len(tuples)])
		}
		bodies := [][]any{{list}, {}, {primary}, {list, list}, {nil}}
		s, err := compareSlots([]any{primary}, bodies[int(shape/8)%len(bodies)])
		if err == nil && s.Level == plan.Required && (state != "booted" || name == primary) {
			t.Errorf("required by %v with primary %q", list, primary)
		}
		bound("rauc", s)
	})
}
