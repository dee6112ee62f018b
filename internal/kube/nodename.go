// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/text"
)

// kubeletKubeconfigs is where the distributions keep the kubelet's kubeconfig. Of the files of one distribution the first
// says where the API server is; the later ones are what its kubelet was started with.
var kubeletKubeconfigs = [][]string{
	{"etc/kubernetes/kubelet.conf"}, // kubeadm
	// EKS, GKE, AKS and OpenShift
	{"var/lib/kubelet/kubeconfig", "var/lib/kubelet/bootstrap-kubeconfig", "etc/kubernetes/kubeconfig"},
	{"var/lib/rancher/k3s/agent/kubelet.kubeconfig", "etc/rancher/k3s/k3s.yaml"},
	{"var/lib/rancher/rke2/agent/kubelet.kubeconfig", "etc/rancher/rke2/rke2.yaml"},
	{"run/k0s/nllb/kubeconfig.yaml", "var/lib/k0s/kubelet.conf"}, // the first one where it balances the load itself
	{"var/snap/microk8s/current/credentials/kubelet.config"},
}

// Where kubelet flags are kept, one shell-like assignment or argument list per line.
var kubeletFlags = []string{
	"var/lib/kubelet/kubeadm-flags.env",
	"etc/default/kubelet",
	"etc/sysconfig/kubelet",
	"var/snap/microk8s/current/args/kubelet",
}

// Where k3s and RKE2 are told a name; a kubelet certificate wins over it, because with-node-id appends to the name.
var rancherConfigs = []string{
	"etc/rancher/k3s/config.yaml",
	"etc/rancher/k3s/config.yaml.d/*.yaml",
	"etc/rancher/rke2/config.yaml",
	"etc/rancher/rke2/config.yaml.d/*.yaml",
}

var rancherEnvironments = []string{
	"etc/systemd/system/k3s.service.env",
	"etc/systemd/system/k3s-agent.service.env",
	"etc/default/k3s", "etc/default/k3s-agent", "etc/sysconfig/k3s", "etc/sysconfig/k3s-agent",
	"etc/default/rke2-server", "etc/default/rke2-agent", "etc/sysconfig/rke2-server", "etc/sysconfig/rke2-agent",
}

var (
	hostnameOverride = regexp.MustCompile(`--hostname-override[= ]["']?([^\s"']+)`)
	nodeNameVariable = regexp.MustCompile(`(?m)^\s*(?:export\s+)?(?:K3S|RKE2)_NODE_NAME=["']?([^\s"']+)`)
)

// FindNodeName returns the configured name, or the name that the kubelet's configuration below root gives, or bound, the
// Node that the credential is for (empty: it does not say), or the lower-case hostname, as the kubelet itself would. A
// credential for another Node than the first two name is an error. The result is a guess until Prove has compared the
// machine ids.
func FindNodeName(root, configured, bound string) (string, error) {
	if configured != "" {
		return boundName(configured, "[node] name", bound)
	}
	for _, look := range []func(root string) map[string]string{certifiedNames, overriddenNames} {
		names := look(root)
		if len(names) > 1 {
			return "", fmt.Errorf("finding the node name: kubelet configurations disagree (%s): set [node] name",
				disagreement(names))
		}
		for name, source := range names {
			return boundName(name, source, bound)
		}
	}
	if bound != "" {
		return checkedName(bound, "the credential")
	}
	name, err := hostname(root)
	if err != nil {
		return "", fmt.Errorf("finding the node name: %w: set [node] name", err)
	}
	return checkedName(strings.ToLower(strings.TrimSpace(name)), "hostname")
}

func boundName(name, source, bound string) (string, error) {
	name, err := checkedName(name, source)
	if err == nil && bound != "" && bound != name {
		return "", fmt.Errorf("the credential is for Node %q, and this machine is Node %q (from %s): %s, or set [node] name",
			text.Line(bound, maxText), name, source, wayAgain(name))
	}
	return name, err
}

// certifiedNames come from the kubelet's own identity. Most of these files only root may read; those are passed over.
func certifiedNames(root string) map[string]string {
	names := map[string]string{}
	for _, path := range slices.Concat(kubeletKubeconfigs...) {
		if name := certifiedName(root, path); name != "" {
			names[name] = path
		}
	}
	return names
}

// certifiedName is the name of the Node for whose kubelet the kubeconfig is, or empty when it does not say.
func certifiedName(root, path string) string {
	config, context := kubeletConfig(root, path)
	if context == nil {
		return ""
	}
	user := context.AuthInfo
	if info := config.AuthInfos[user]; info != nil {
		cert := info.ClientCertificateData
		if len(cert) == 0 && info.ClientCertificate != "" {
			cert, _ = readBeside(root, path, info.ClientCertificate)
		}
		if parsed := parseCertificate(cert); parsed != nil {
			user = parsed.Subject.CommonName
		}
	}
	name, _ := strings.CutPrefix(user, nodeUser)
	if name == user {
		return ""
	}
	return name
}

// kubeletConfig reads one kubeconfig and its current context; nil: there is none, or it is something else. On OpenShift
// /etc/kubernetes/kubelet.conf is no kubeconfig.
func kubeletConfig(root, path string) (*clientcmdapi.Config, *clientcmdapi.Context) {
	data, err := files.Read(filepath.Join(root, path), maxKubeconfig)
	if err != nil {
		return nil, nil
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, nil
	}
	return config, config.Contexts[config.CurrentContext]
}

// readBeside reads a file that the kubeconfig at path names.
func readBeside(root, path, name string) ([]byte, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	return files.Read(inRoot(root, name), maxKubeconfig)
}

// inRoot resolves the symlink that the kubelet keeps its current certificate behind, inside of root.
func inRoot(root, path string) string {
	full := filepath.Join(root, path)
	if target, err := os.Readlink(full); err == nil && filepath.IsAbs(target) {
		return filepath.Join(root, target)
	}
	return full
}

func overriddenNames(root string) map[string]string {
	names := map[string]string{}
	find := func(paths []string, pattern *regexp.Regexp) {
		for _, path := range paths {
			data, _ := files.Read(filepath.Join(root, path), maxKubeconfig)
			for line := range strings.Lines(string(data)) {
				if strings.HasPrefix(strings.TrimSpace(line), "#") {
					continue
				}
				if match := pattern.FindStringSubmatch(line); match != nil {
					names[strings.ToLower(match[1])] = path
				}
			}
		}
	}
	find(kubeletFlags, hostnameOverride)
	find(rancherEnvironments, nodeNameVariable)
	for _, pattern := range rancherConfigs {
		paths, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are constants
		for _, path := range paths {
			data, _ := files.Read(path, maxKubeconfig)
			var config struct {
				NodeName string `json:"node-name"`
			}
			if yaml.Unmarshal(data, &config) == nil && config.NodeName != "" {
				names[strings.ToLower(config.NodeName)] = strings.TrimPrefix(path, root)
			}
		}
	}
	return names
}

func hostname(root string) (string, error) {
	if filepath.Clean(root) == "/" {
		return os.Hostname()
	}
	data, err := files.Read(filepath.Join(root, "etc/hostname"), maxKubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("no kubelet configuration and no /etc/hostname")
	}
	return string(data), err
}

func checkedName(name, source string) (string, error) {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("finding the node name: %q (from %s) is no node name: %s",
			text.Line(name, maxText), source, problems[0])
	}
	return name, nil
}

func disagreement(names map[string]string) string {
	var parts []string
	for name, source := range names {
		parts = append(parts, fmt.Sprintf("%q in /%s", text.Line(name, maxText), strings.TrimPrefix(source, "/")))
	}
	// The order of a map is random, the message must not be.
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
