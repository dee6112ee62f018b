// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kured-agent/kured-agent/internal/text"
)

// Pod is what FromPod looks at.
type Pod struct {
	Namespace string
	DaemonSet string // that controls the pod; empty: none does
	Labels    map[string]string
	Images    []string // of its containers
}

// podProgram is a program that reboots nodes from a DaemonSet.
type podProgram struct {
	name       string
	namespace  string   // by its own manifests
	names      []string // values of a label that names the program
	image      string   // last part of the image's name
	recognised string
}

var podPrograms = []podProgram{
	{
		name: "kured", namespace: "kube-system", names: []string{"kured"}, image: "kured",
		recognised: "a DaemonSet's pod on this node with `kured` in label `name` or `app.kubernetes.io/name`, or image " +
			"`…/kured`",
	}, {
		name:  "flatcar-linux-update-agent",
		names: []string{"flatcar-linux-update-agent", "flatcar-linux-update-operator"},
		image: "flatcar-linux-update-operator",
		recognised: "a DaemonSet's pod on this node with this name in label `app`, or image " +
			"`…/flatcar-linux-update-operator`",
	},
}

func offPod(namespace, daemonSet string) string {
	return fmt.Sprintf("kubectl --namespace %s delete daemonset %s", namespace, daemonSet)
}

// FromPod recognises the pod of a program that reboots its node. Only a DaemonSet's pod counts: anybody may label a pod
// of its own.
func FromPod(p Pod) (Manager, bool) {
	if p.DaemonSet == "" {
		return Manager{}, false
	}
	for _, program := range podPrograms {
		if !program.runs(p) {
			continue
		}
		namespace, name := text.Line(p.Namespace, 63), text.Line(p.DaemonSet, 253)
		return Manager{
			Name: program.name,
			Why:  fmt.Sprintf("DaemonSet %s/%s has a pod on this node", namespace, name),
			Off:  offPod(namespace, name),
		}, true
	}
	return Manager{}, false
}

func (program podProgram) runs(p Pod) bool {
	for _, key := range []string{"name", "app", "app.kubernetes.io/name"} {
		if slices.Contains(program.names, p.Labels[key]) {
			return true
		}
	}
	return slices.ContainsFunc(p.Images, func(image string) bool { return imageName(image) == program.image })
}

// imageName is the last part of an image's name, without tag and digest.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	image = image[strings.LastIndexByte(image, '/')+1:]
	image, _, _ = strings.Cut(image, ":")
	return image
}
