// SPDX-License-Identifier: Apache-2.0

package bustest

import "github.com/godbus/dbus/v5"

const (
	tukitName        = "org.opensuse.tukit"
	tukitPath        = "/org/opensuse/tukit"
	tukitTransaction = tukitName + ".Transaction"
)

// FakeTukit is a tukitd. It tells of a transaction from two objects, as the real one does. Method for On: List.
type FakeTukit struct {
	*Service
	snapshots []map[string]string
}

// NewTukit connects one whose snapshot 7 is running and next.
func NewTukit(d *Daemon) *FakeTukit {
	f := &FakeTukit{Service: newService(d, tukitName)}
	f.SetSnapshots("7", "7")
	f.handle(tukitPath+"/Snapshot", tukitName+".Snapshot", map[string]any{
		"List": func(columns string) ([]map[string]string, *dbus.Error) {
			err := f.called("List", columns)
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.snapshots, err
		},
	})
	f.Connect()
	return f
}

// SetSnapshots says which snapshot runs and which the next boot uses.
func (f *FakeTukit) SetSnapshots(running, next string) {
	yes := map[bool]string{true: "yes", false: "no"}
	var list []map[string]string
	for _, number := range []string{"0", "6", running, next} {
		list = append(list, map[string]string{
			"number": number, "default": yes[number == next], "active": yes[number == running],
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshots = list
}

// Open announces a transaction.
func (f *FakeTukit) Open(snapshot string) {
	f.Emit(tukitPath, tukitTransaction+".TransactionOpened", snapshot)
}

// Executed announces that a command in a transaction has ended.
func (f *FakeTukit) Executed(snapshot string, status int32) {
	f.Emit(tukitPath+"/Transaction", tukitTransaction+".CommandExecuted", snapshot, status, "output")
}
