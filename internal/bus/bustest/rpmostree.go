// SPDX-License-Identifier: Apache-2.0

package bustest

import (
	"github.com/godbus/dbus/v5"
)

const (
	rpmOstreePath  = "/org/projectatomic/rpmostree1/Sysroot"
	rpmOstreeIface = "org.projectatomic.rpmostree1.Sysroot"
)

// Deployment is one entry of rpm-ostree's Deployments.
type Deployment struct {
	Checksum, Version string
	Serial            int32
	Booted, Staged    bool
	Locked            bool // told only when true, and not for every lock
}

// FakeRPMOstree is rpm-ostree's daemon. It leaves with Disconnect, as the real one does after a minute of idling, and is
// there again with Connect. Method for On: Get.
type FakeRPMOstree struct{ *Service }

// NewRPMOstree connects one with deployments in boot order.
func NewRPMOstree(d *Daemon, list ...Deployment) FakeRPMOstree {
	f := FakeRPMOstree{newService(d, "org.projectatomic.rpmostree1")}
	f.SetProperty(rpmOstreePath, rpmOstreeIface, "Booted", dbus.ObjectPath("/org/projectatomic/rpmostree1/fedora"))
	f.Set(list...)
	f.Connect()
	return f
}

// Set replaces the deployments without a signal.
func (f FakeRPMOstree) Set(list ...Deployment) {
	f.SetProperty(rpmOstreePath, rpmOstreeIface, "Deployments", dicts(list))
}

// Deploy replaces the deployments and announces it.
func (f FakeRPMOstree) Deploy(list ...Deployment) {
	f.ChangeProperty(rpmOstreePath, rpmOstreeIface, "Deployments", dicts(list))
}

func dicts(list []Deployment) []map[string]dbus.Variant {
	out := []map[string]dbus.Variant{}
	for _, d := range list {
		dict := map[string]dbus.Variant{
			"checksum": dbus.MakeVariant(d.Checksum), "serial": dbus.MakeVariant(d.Serial),
			"osname": dbus.MakeVariant("fedora"), "booted": dbus.MakeVariant(d.Booted),
			"staged": dbus.MakeVariant(d.Staged), "pinned": dbus.MakeVariant(false),
			"packages": dbus.MakeVariant([]string{"htop"}),
		}
		if d.Version != "" {
			dict["version"] = dbus.MakeVariant(d.Version)
		}
		if d.Locked {
			dict["finalization-locked"] = dbus.MakeVariant(true)
		}
		out = append(out, dict)
	}
	return out
}
