// SPDX-License-Identifier: Apache-2.0

//go:build integration

package agent_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"
	"github.com/kured-agent/kured-agent/test/lab"
)

// minutes makes a machine whose token lives ten minutes, which is the least that the API server grants, and is renewed
// when it is three seconds old.
func minutes(t *testing.T, c *cluster.Cluster, name string) *lab.Machine {
	t.Helper()
	m := lab.New(t, c, name, lab.Options{Flags: []string{"--renew-after", "3s"}})
	enrol(m)
	return m
}

// enrol gives the machine a new credential, as the admin does.
func enrol(m *lab.Machine) (token string) {
	token = m.Cluster.AgentToken(m.Name, 10*time.Minute)
	m.Write("/etc/kured/kubeconfig", string(m.Cluster.AgentKubeconfigWith(token)), 0o600)
	return token
}

func TestTheTokenIsRenewedWhileTheNodeRebootsAndNobodySeesIt(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := minutes(t, c, "renewal")
	kubeconfig, err := os.ReadFile(m.Path("/etc/kured/kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	kept := func() string {
		content, _ := os.ReadFile(m.Path("/var/lib/kured-agent/token"))
		return strings.TrimSpace(string(content))
	}
	m.Start()
	m.WaitPhase("Idle")
	c.Eventually("an idle agent renews its token", 30*time.Second, func() bool {
		u, _ := m.Status()
		return u.Renewals == 1 && u.Credential != nil && u.Credential.Renewed && u.Credential.Trouble == ""
	})
	first := kept()
	if info, err := os.Stat(m.Path("/var/lib/kured-agent/token")); err != nil || info.Mode() != 0o600 || first == "" {
		t.Errorf("kept with mode %v, %v", info, err)
	}
	m.Require("kernel")
	m.WaitAsked(1)
	m.Login.PrepareForShutdown(true)
	m.Reboot()
	m.WaitClean()
	m.WaitPhase("Idle")
	second := kept()
	if second == first {
		t.Error("the boot did not renew the token")
	}
	out, _ := m.Command("status")
	if !strings.Contains(out, "Credential    token, expires ") || !strings.Contains(out, "renewed ") {
		t.Errorf("status:\n%s", out)
	}
	renewal := func(r cluster.Request) bool {
		return r.User == cluster.AgentUser && r.Subresource == "token" && r.Code == 201
	}
	if n := len(c.WaitRequests(renewal, 2, 10*time.Second)); n < 2 {
		t.Errorf("%d renewals in the audit log", n)
	}
	if now, _ := os.ReadFile(m.Path("/etc/kured/kubeconfig")); string(now) != string(kubeconfig) {
		t.Error("the agent wrote its kubeconfig")
	}
	for _, secret := range []string{first, second, strings.Fields(strings.SplitAfter(string(kubeconfig), "token: ")[1])[0]} {
		for part := range strings.SplitSeq(secret, ".") {
			if part != "" && strings.Contains(m.Log()+out, part) {
				t.Error("a part of a token is in the journal or in the status")
			}
		}
	}
}

func TestANodeThatIsCreatedAnewIsToldWithTheRepairWhichNeedsNoRestart(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "anew", lab.Options{})
	m.Start()
	m.WaitPhase("Idle")
	before := c.Node(m.Name).UID
	m.Kubelet.Down()
	c.MustKubectl("delete", "node", m.Name)
	m.Kubelet.Up(m.Kubelet.BootID())
	if c.Node(m.Name).UID == before {
		t.Fatal("the Node is the same object")
	}
	m.Require("kernel")
	repair := fmt.Sprintf("kubectl kured enroll %[1]s | ssh %[1]s sudo kured-agent enroll --kubeconfig -", m.Name)
	c.Eventually("the status says what repairs it", 60*time.Second, func() bool {
		u, _ := m.Status()
		return u.Phase == "Unreachable" && strings.Contains(u.Why, "created anew") && strings.Contains(u.Why, repair)
	})
	if out, code := m.Command("check-config"); code != 1 || !strings.Contains(out, repair) {
		t.Errorf("check-config: %d %s", code, out)
	}
	if !strings.Contains(m.Log(), repair) {
		t.Error("the journal does not say it")
	}
	enrol(m)
	m.WaitAsked(1)
	m.Unrequire()
}

func TestARefusedRenewalIsAnEventAndStopsNothing(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	c.Apply(`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-renewal}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["serviceaccounts/token"]}
  matchConditions:
  - name: one
    expression: >-
      'authentication.kubernetes.io/node-name' in request.userInfo.extra &&
      request.userInfo.extra['authentication.kubernetes.io/node-name'][0] == 'no-renewal'
  validations: [{expression: "false", message: "nobody renews here"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-renewal}
spec: {policyName: no-renewal, validationActions: [Deny]}
`)
	m := lab.New(t, c, "no-renewal", lab.Options{Flags: []string{"--renew-after", "15s"}}) // the policy is enforced by then
	enrol(m)
	m.Start()
	c.Eventually("the refusal is told", 60*time.Second, func() bool {
		u, _ := m.Status()
		return u.RenewalFailures > 0 && u.Credential != nil && strings.Contains(u.Credential.Trouble, "nobody renews here")
	})
	c.Eventually("the refusal is an Event", 60*time.Second, func() bool {
		out, _ := c.Kubectl("get", "events", "-n", "default", "-o", "jsonpath={.items[?(@.reason=='CredentialTrouble')].message}",
			"--field-selector", "involvedObject.name="+m.Name)
		return strings.Contains(out, "nobody renews here")
	})
	if out, _ := m.Command("status"); !strings.Contains(out, "TROUBLE: renewing the credential: refused by an admission policy") {
		t.Errorf("status:\n%s", out)
	}
	m.Require("kernel") // the present token is good still
	m.WaitAsked(1)
	m.Unrequire()
}

func TestATokenFileOfAnotherProgramIsFollowed(t *testing.T) {
	t.Parallel()
	c := shared.For(t)
	m := lab.New(t, c, "tokenfile", lab.Options{})
	release := m.HoldSlot()
	kubeconfig := string(c.AgentKubeconfigWith("TOKEN"))
	m.Write("/etc/kured/kubeconfig", strings.Replace(kubeconfig, "token: TOKEN", "tokenFile: token", 1), 0o600)
	m.Write("/etc/kured/token", c.AgentToken(m.Name, 10*time.Minute), 0o600)
	m.Start()
	m.Require("kernel")
	m.WaitTainted()
	m.Write("/etc/kured/token", "revoked", 0o600)
	release()
	c.Eventually("the revoked token is not accepted", 60*time.Second, func() bool {
		u, _ := m.Status()
		return u.Phase == "Unreachable" && strings.Contains(u.Why, "credential not accepted")
	})
	m.Write("/etc/kured/token", c.AgentToken(m.Name, 10*time.Minute), 0o600)
	m.WaitAsked(1)
	m.Unrequire()
}
