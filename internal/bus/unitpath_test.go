// SPDX-License-Identifier: Apache-2.0

package bus

import (
	"testing"

	"github.com/godbus/dbus/v5"
)

func TestUnitPathsAreEscaped(t *testing.T) {
	for name, want := range map[string]string{
		"kured-agent-pre-reboot.target": "/org/freedesktop/systemd1/unit/kured_2dagent_2dpre_2dreboot_2etarget",
		"0a@b.service":                  "/org/freedesktop/systemd1/unit/_30a_40b_2eservice",
		"":                              "/org/freedesktop/systemd1/unit/_",
	} {
		if got := UnitPath(name); got != want {
			t.Errorf("UnitPath(%q) = %q", name, got)
		}
	}
}

func FuzzUnitPath(f *testing.F) {
	f.Add("kured-agent.service")
	f.Fuzz(func(t *testing.T, name string) {
		if got := UnitPath(name); !dbus.ObjectPath(got).IsValid() {
			t.Errorf("UnitPath(%q) = %q", name, got)
		}
	})
}
