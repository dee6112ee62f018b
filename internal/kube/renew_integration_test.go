// SPDX-License-Identifier: Apache-2.0
//go:build integration

package kube_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/test/cluster"

	"github.com/kured-agent/kured-agent/internal/kube"
)

// enrolled makes a node whose credential lives so long, and a client of it with a state directory.
func enrolled(t *testing.T, c *cluster.Cluster, node string, life time.Duration) (client *kube.Client, o kube.Options) {
	t.Helper()
	c.NewKubelet(node, cluster.KubeletOptions{MachineID: machine})
	o = kube.Options{Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), State: t.TempDir(), QPS: 10_000}
	write(t, o.Kubeconfig, string(c.AgentKubeconfigWith(c.AgentToken(node, life))), 0o600)
	client, err := kube.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdle)
	return client, o
}

func TestAMinutesTokenIsRenewedUnderTheRealPoliciesAndTheNewOneIsAccepted(t *testing.T) {
	c := shared.For(t)
	client, o := enrolled(t, c, "renewed", 10*time.Minute)
	first := client.Credential()
	if first.Lifetime() != 10*time.Minute || first.DueIn() > 330*time.Second || first.DueIn() < 260*time.Second ||
		first.NodeUID != string(c.Node("renewed").UID) || first.Note != "" || first.Trouble != "" {
		t.Errorf("enrolled: %+v, due in %s", first, first.DueIn())
	}
	fingerprint := client.Fingerprint("renewed")
	before := client.Requests()
	if err := client.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := client.Requests() - before; n != 1 {
		t.Errorf("%d requests for one renewal", n)
	}
	second := client.Credential()
	if !second.Renewed || second.Lifetime() != 10*time.Minute || client.Fingerprint("renewed") != fingerprint {
		t.Errorf("renewed: %+v", second)
	}
	kept, err := os.ReadFile(filepath.Join(o.State, "token"))
	if err != nil || strings.Contains(mustRead(t, o.Kubeconfig), strings.TrimSpace(string(kept))) {
		t.Fatalf("kept %d bytes, %v", len(kept), err)
	}
	// The new token alone, in a new process, is proven and can renew itself again.
	write(t, o.Kubeconfig, string(c.AgentKubeconfigWith(strings.TrimSpace(string(kept)))), 0o600)
	again, err := kube.Connect(kube.Options{Kubeconfig: o.Kubeconfig, State: o.State, QPS: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.CloseIdle)
	if err := errors.Join(again.Prove(t.Context(), "renewed", machine), again.Renew(t.Context())); err != nil {
		t.Error(err)
	}
}

// Whoever reads the file while it is replaced, or after a crash, finds the old token or the new one, whole.
func TestTheRenewedTokenIsReplacedAsAWhole(t *testing.T) {
	c := shared.For(t)
	client, o := enrolled(t, c, "whole", 10*time.Minute)
	if err := client.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			content, err := os.ReadFile(filepath.Join(o.State, "token"))
			if err != nil || strings.Count(string(content), ".") != 2 || !strings.HasSuffix(string(content), "\n") {
				t.Errorf("read %d bytes, %v", len(content), err)
				return
			}
		}
	})
	for range 20 {
		if err := client.Renew(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	reader.Wait()
}

func TestANodeThatIsCreatedAnewEndsTheCredentialUntilItIsEnrolledAgain(t *testing.T) {
	c := shared.For(t)
	client, o := enrolled(t, c, "anew", time.Hour)
	if err := client.Prove(t.Context(), "anew", machine); err != nil {
		t.Fatal(err)
	}
	fingerprint, old := client.Fingerprint("anew"), string(c.Node("anew").UID)
	c.MustKubectl("delete", "node", "anew")
	c.NewKubelet("anew", cluster.KubeletOptions{MachineID: machine})
	c.Eventually("the Node is another object", 10*time.Second, func() bool {
		node := c.NodeOrNil("anew")
		return node != nil && string(node.UID) != old
	})
	const repair = "kubectl kured enroll anew | ssh anew sudo kured-agent enroll --kubeconfig -"
	c.Eventually("the renewal says that the Node is another one", 30*time.Second, func() bool {
		err := client.Renew(t.Context())
		refused, ok := errors.AsType[*kube.RenewalError](err)
		return ok && !refused.NoAnswer && strings.Contains(err.Error(), "created anew") && strings.Contains(err.Error(), repair)
	})
	c.Eventually("every other request says so too", 30*time.Second, func() bool {
		err := client.Core().Get().Resource("nodes").Name("anew").Do(t.Context()).Error()
		return err != nil && strings.Contains(err.Error(), old) && strings.Contains(err.Error(), repair)
	})
	if got := problems(t, client.Prove(t.Context(), "anew", machine)); len(got) != 1 || !strings.Contains(got[0], repair) {
		t.Errorf("got %q", got)
	}
	// Enrolled again, while the process runs.
	write(t, o.Kubeconfig, string(c.AgentKubeconfigWith(c.AgentToken("anew", time.Hour))), 0o600)
	if client.Fingerprint("anew") == fingerprint {
		t.Error("the identity is taken for the same")
	}
	if err := errors.Join(client.Prove(t.Context(), "anew", machine), client.Renew(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestARefusedRenewalSaysWhoRefusedIt(t *testing.T) {
	c := shared.For(t)
	client, _ := enrolled(t, c, "refused", time.Hour)
	policy := func(name, expression string) {
		c.Apply(fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["serviceaccounts/token"]}
  matchConditions: [{name: one, expression: "'authentication.kubernetes.io/node-name' in request.userInfo.extra && request.userInfo.extra['authentication.kubernetes.io/node-name'][0] == 'refused'"}]
  validations: [{expression: %[2]q, message: "tokens live half an hour here"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`, name, expression))
	}
	policy("short", "object.spec.expirationSeconds <= 1800")
	t.Cleanup(func() {
		c.MustKubectl("delete", "validatingadmissionpolicy/short", "validatingadmissionpolicybinding/short")
	})
	var last error
	c.Eventually("a policy refuses", 30*time.Second, func() bool {
		last = client.Renew(t.Context())
		return last != nil && strings.Contains(last.Error(), "tokens live half an hour here")
	})
	refused, ok := errors.AsType[*kube.RenewalError](last)
	if !ok || refused.NoAnswer || !strings.Contains(last.Error(), "admission policy") {
		t.Errorf("got %v", last)
	}
	if c := client.Credential(); c.Trouble != "" { // the present token is good still
		t.Errorf("%+v", c)
	}
}

func TestWithoutTheRightToRenewTheAnswerNamesIt(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	client, _ := enrolled(t, c, "unable", time.Hour)
	c.MustKubectl("-n", "kured-agent", "patch", "role", "kured-agent", "--type=json", "-p",
		`[{"op":"remove","path":"/rules/2"}]`)
	c.Eventually("the right is gone", 30*time.Second, func() bool {
		err := client.Renew(t.Context())
		return err != nil && strings.Contains(err.Error(), `cannot create resource "serviceaccounts/token"`) &&
			strings.Contains(err.Error(), "kubectl apply -k")
	})
	c.StopAPIServer()
	refused, ok := errors.AsType[*kube.RenewalError](client.Renew(t.Context()))
	if !ok || !refused.NoAnswer {
		t.Errorf("without the API server: %v", refused)
	}
}
