// SPDX-License-Identifier: Apache-2.0
//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// kured builds the admin's command and returns its path.
func (s *scene) kured() string {
	s.Helper()
	root, err := cluster.ModuleRoot()
	if err != nil {
		s.Fatal(err)
	}
	command := filepath.Join(s.TempDir(), "kubectl-kured")
	build := exec.Command("go", "build", "-o", command, "./cmd/kubectl-kured")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
	return command
}

// enrol is "kubectl kured enroll NODE | ssh NODE sudo kured-agent enroll --kubeconfig -". The pipe is a file that the
// machine sees.
func (n *node) enrol(flags ...string) string {
	n.s.Helper()
	kured := exec.Command(n.s.kured(),
		append([]string{"--kubeconfig", n.s.c.Admin(), "enroll", n.Name(), "--server", n.s.url}, flags...)...)
	kured.Stderr = os.Stderr
	kubeconfig, err := kured.Output()
	if err == nil {
		err = os.WriteFile(filepath.Join(n.Share(), "pipe"), kubeconfig, 0o600)
	}
	if err != nil {
		n.s.Fatal(err)
	}
	return n.MustRun("sh", "-c", "kured-agent enroll --kubeconfig - </share/pipe")
}

func TestAMachineIsEnrolledByTheDocumentedCommands(t *testing.T) {
	for name, c := range map[string]struct {
		suite, user string
		flags       []string
	}{
		"token": {debian13, "system:serviceaccount:kured-agent:agent", nil},
		"cert":  {debian12, "kured-agent:enrol-cert", []string{"--client-certificate"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			n := s.bare("enrol-"+name, c.suite)
			n.Install(deb)
			n.Write("/etc/kured/config.d/quick.toml", quick, 0o644)
			out := n.enrol(c.flags...)
			for _, want := range []string{"installed /etc/kured/kubeconfig for node " + n.Name(), "credential: " + c.user + ", valid until ",
				"next:       look into /etc/kured/config.toml, and then: systemctl enable --now kured-agent"} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in:\n%s", want, out)
				}
			}
			if got := strings.TrimSpace(n.MustRun("stat", "--format=%U:%G %a", "/etc/kured/kubeconfig")); got != "root:kured-agent 640" {
				t.Errorf("the credential is %s", got)
			}
			if out := n.MustRun("runuser", "-u", "kured-agent", "--", "kured-agent", "check-config"); !strings.Contains(out, "fine, for node "+n.Name()) {
				t.Errorf("%s", out)
			}
			n.enable()
			n.requireByFile("linux-image-" + c.suite)
			n.waitReturned(2)
			n.mustHaveBoots(2)
			if out := n.enrol(c.flags...); !strings.Contains(out, "next:       systemctl reload kured-agent") {
				t.Errorf("%s", out)
			}
			n.MustRun("systemctl", "reload", "kured-agent")
			n.eventually("the agent rests with its new credential", cycleBound, func() bool { return n.phase() == "Idle" })
		})
	}
}
