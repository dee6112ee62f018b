// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestNodeNameComesFromTheKubeletsConfiguration(t *testing.T) {
	for _, c := range []struct{ layout, configured, want, problem string }{
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
	} {
		t.Run(c.layout+" "+c.configured, func(t *testing.T) {
			name, err := FindNodeName(filepath.Join("testdata/roots", c.layout), c.configured)
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
	if name, err := FindNodeName("/", ""); err != nil || name == "" {
		t.Fatalf("got %q, %v", name, err)
	}
}
