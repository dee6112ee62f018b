// SPDX-License-Identifier: Apache-2.0

// Command controlplane is a whole Kubernetes control plane in one program: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler and kubectl, each the unchanged upstream command, chosen by the first
// argument. Package test/cluster builds it once, keeps it in the user's cache and runs one process per part, so that
// tests meet the real API semantics without downloading binaries or needing containers.
//
//	controlplane etcd --data-dir DIR …
//	controlplane kube-apiserver --etcd-servers URL …
//	controlplane kubectl --kubeconfig FILE get nodes
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	_ "time/tzdata" // CronJobs and windows in tests name zones that a minimal host may not have

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// parts maps a name to what runs it with os.Args already shifted; the result is the exit status.
var parts = map[string]func() int{
	"etcd": func() int {
		etcdmain.Main(os.Args)
		return 0
	},
	"kube-apiserver":          command(apiserver.NewAPIServerCommand),
	"kube-controller-manager": command(controllers.NewControllerManagerCommand),
	"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 command(kubectl.NewDefaultKubectlCommand),
}

func command(build func() *cobra.Command) func() int {
	return func() int { return cli.Run(build()) }
}

func main() {
	var name string
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	run, ok := parts[name]
	if !ok {
		usage(name)
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	os.Exit(run())
}

func usage(name string) {
	if name != "" {
		fmt.Fprintf(os.Stderr, "controlplane: no part is named %q\n", name)
	}
	var names []string
	for part := range parts {
		names = append(names, part)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "usage: controlplane PART [FLAG]…\n\nPART is one of %s.\nFlags of a part: controlplane PART --help\n",
		strings.Join(names, ", "))
}
