// SPDX-License-Identifier: Apache-2.0

package beside

import "testing"

func TestAPodThatRebootsItsNodeIsRecognised(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pod  Pod
		name string
	}{
		{Pod{DaemonSet: "kured", Labels: map[string]string{"name": "kured"}}, "kured"},
		{Pod{DaemonSet: "my-kured", Labels: map[string]string{"app.kubernetes.io/name": "kured"}}, "kured"},
		{Pod{DaemonSet: "reboots", Images: []string{"sidecar:1", "ghcr.io/kubereboot/kured:1.23.0"}}, "kured"},
		{Pod{DaemonSet: "reboots", Images: []string{"registry.example:5000/mirror/kured@sha256:12"}}, "kured"},
		{Pod{DaemonSet: "reboots", Images: []string{"kured"}}, "kured"},
		{Pod{DaemonSet: "a", Labels: map[string]string{"app": "flatcar-linux-update-agent"}}, "flatcar-linux-update-agent"},
		{Pod{DaemonSet: "a", Images: []string{"ghcr.io/x/flatcar-linux-update-operator:v1"}}, "flatcar-linux-update-agent"},

		{Pod{Labels: map[string]string{"name": "kured"}, Images: []string{"kured:1"}}, ""}, // anybody's pod
		{Pod{DaemonSet: "d", Images: []string{"kured-exporter:1", "kured/agent:1", "example:5000/x", ""}}, ""},
		{Pod{DaemonSet: "d", Labels: map[string]string{"part-of": "kured", "name": "kured-agent"}}, ""},
		{Pod{}, ""},
	} {
		test.pod.Namespace = "kube-system"
		got, ok := FromPod(test.pod)
		if ok != (test.name != "") || got.Name != test.name {
			t.Errorf("%+v gives %+v", test.pod, got)
		}
	}
	got, _ := FromPod(Pod{Namespace: "ops", DaemonSet: "kured", Images: []string{"kured:1"}})
	want := Manager{
		Name: "kured", Why: "DaemonSet ops/kured has a pod on this node",
		Off: "kubectl --namespace ops delete daemonset kured",
	}
	if got != want {
		t.Errorf("%+v", got)
	}
}
