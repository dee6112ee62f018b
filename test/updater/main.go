// SPDX-License-Identifier: Apache-2.0

// Command updater is a system service for the tests: it owns com.example.Updater on the system bus and broadcasts
// StatusChanged(uint32, string, string) whenever its method Set is called, with the given word as third argument.
package main

import (
	"fmt"
	"os"

	"github.com/godbus/dbus/v5"
)

const (
	name = "com.example.Updater"
	path = dbus.ObjectPath("/com/example/Updater")
)

type updater struct {
	conn  *dbus.Conn
	count uint32
}

// Set broadcasts a new status.
func (u *updater) Set(status string) *dbus.Error {
	u.count++
	if err := u.conn.Emit(path, name+".StatusChanged", u.count, "progress", status); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "updater:", err)
		os.Exit(1)
	}
}

func run() error {
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		return err
	}
	if err := conn.Export(&updater{conn: conn}, path, name); err != nil {
		return err
	}
	reply, err := conn.RequestName(name, dbus.NameFlagDoNotQueue)
	if err != nil {
		return err
	}
	if reply != dbus.RequestNameReplyPrimaryOwner {
		return fmt.Errorf("owning %s: somebody else does", name)
	}
	<-conn.Context().Done()
	return nil
}
