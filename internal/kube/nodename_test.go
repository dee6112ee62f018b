// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestNodeNameComesFromTheKubeletsConfiguration(t *testing.T) {
	for _, c := range []struct{ layout, configured, bound, want, problem string }{
		{layout: "kubeadm", want: "worker-1"},  // kubeconfig's user beats flags and hostname
		{layout: "k3s", want: "k3s-edge-7f3a"}, // the certificate knows the appended id
		// the environment file, lower-case as the kubelet does
		{layout: "k3s-unreadable", want: "edge-2"},
		{layout: "rke2", want: "rke-worker-3"},                         // certificate unreadable: the config file
		{layout: "override", want: "worker-nine.example.com"},          // --hostname-override, comments ignored
		{layout: "hostname", want: "plain-host.example.com"},           // nothing else
		{layout: "disagree", problem: `"one" in /etc/default/kubelet`}, // two answers are none
		{layout: "disagree", configured: "two", want: "two"},           // unless a human decides
		{layout: "badname", problem: "is no node name"},
		{layout: "empty", problem: "set [node] name"},
		{layout: "kubeadm", configured: "Not A Name", problem: "[node] name"},
		// The agent may not read the kubelet's own files, but it knows whom its credential is for.
		{layout: "eks", bound: "ip-10-0-0-3.internal", want: "ip-10-0-0-3.internal"},
		{layout: "kubeadm", bound: "worker-1", want: "worker-1"},
		{layout: "kubeadm", bound: "worker-2",
			problem: `for Node "worker-2", and this machine is Node "worker-1" (from etc/kubernetes/kubelet.conf)`},
		{layout: "override", bound: "worker-2", problem: "kubectl kured enroll worker-nine.example.com | ssh"},
		{layout: "disagree", bound: "one", problem: "disagree"},
		{layout: "hostname", configured: "worker-1", bound: "worker-2", problem: "(from [node] name)"},
		{layout: "hostname", bound: "Not A Name", problem: "the credential"},
		{layout: "aks", want: "aks-nodepool1-12345678-vmss000000"},
		{layout: "gke", want: "gke-one-default-pool-1a2b3c4d-xyz1"},
		{layout: "k0s", want: "k0s-worker"},
		{layout: "microk8s", want: "micro-1"},
		{layout: "openshift", want: "worker-0.one.example.com"},
	} {
		t.Run(c.layout+" "+c.configured, func(t *testing.T) {
			name, err := FindNodeName(filepath.Join("testdata/roots", c.layout), c.configured, c.bound)
			if c.problem != "" {
				if err == nil || !strings.Contains(err.Error(), c.problem) {
					t.Fatalf("got %q, %v, want an error with %q", name, err, c.problem)
				}
				return
			}
			if err != nil || name != c.want {
				t.Fatalf("got %q, %v, want %q", name, err, c.want)
			}
		})
	}
}

func TestNodeNameOfThisHost(t *testing.T) {
	if name, err := FindNodeName("/", "", ""); err != nil || name == "" {
		t.Fatalf("got %q, %v", name, err)
	}
}
