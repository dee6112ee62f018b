// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// graceful ends its pods as a kubelet with shutdownGracePeriod does: it delays the shutdown that logind announces.
const graceful = `#!/bin/sh
until [ "$(busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
	org.freedesktop.login1.Manager PreparingForShutdown)" = "b true" ]; do sleep 0.1; done
touch /told
sleep 2
touch /ended
sync
`

// m-lab/k8s-support#529, kubereboot/kured#329: a signal to systemd killed the DaemonSets' pods, since it passes logind and
// whoever delays the shutdown there.
func TestAKubeletThatDelaysTheShutdownGetsTheTimeForItsPods(t *testing.T) {
	s := newScene(t)
	n := s.node("graceful", debian13, quick).enable()
	n.Write("/usr/local/bin/graceful", graceful, 0o755)
	n.MustExec("systemd-run", "--quiet", "--unit=graceful", "systemd-inhibit", "--what=shutdown", "--mode=delay",
		"--who=kubelet", "--why=ending pods", "/usr/local/bin/graceful")
	n.eventually("the delay is listed", 10*time.Second, func() bool {
		out, _ := n.Exec("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1",
			"org.freedesktop.login1.Manager", "ListInhibitors")
		return strings.Contains(out, "kubelet")
	})
	n.requireByFile("linux-image")
	n.waitReturned(2)
	n.mustHaveBoots(2)
	if told, ended := n.Exists("/told"), n.Exists("/ended"); !told || !ended {
		t.Errorf("told of the shutdown: %v, had its time: %v", told, ended)
	}
}
