// SPDX-License-Identifier: Apache-2.0

package bustest

import "fmt"

const (
	packageKitName  = "org.freedesktop.PackageKit"
	packageKitPath  = "/org/freedesktop/PackageKit"
	packageKitIface = "org.freedesktop.PackageKit"
)

// FakePackageKit is a PackageKit that only speaks: what it says it keeps nowhere. Disconnect is its idle exit.
type FakePackageKit struct {
	*Service
	transactions int
}

// NewPackageKit connects one without a transaction.
func NewPackageKit(d *Daemon) *FakePackageKit {
	return &FakePackageKit{Service: NewService(d, packageKitName)}
}

// RequireRestart emits the signal from the object of a new transaction.
func (f *FakePackageKit) RequireRestart(body ...any) {
	f.transactions++
	f.Emit(fmt.Sprintf("/%d_abcdefgh", f.transactions), packageKitIface+".Transaction.RequireRestart", body...)
}

// RestartSchedule says that PackageKit itself will be restarted.
func (f *FakePackageKit) RestartSchedule() {
	f.Emit(packageKitPath, packageKitIface+".RestartSchedule")
}

// Triggered announces that an offline update has been triggered or cancelled.
func (f *FakePackageKit) Triggered(triggered bool) {
	f.ChangeProperty(packageKitPath, packageKitIface+".Offline", "UpdateTriggered", triggered)
}
