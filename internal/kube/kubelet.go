// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/text"
)

// kubeletCredential is the name that the drop-in kubelet-identity.conf gives the kubelet's kubeconfig.
const kubeletCredential = "kubelet.kubeconfig"

const (
	wayKubelet = "the drop-in kubelet-identity.conf, in /usr/share/doc/kured-agent/examples, gives the agent the kubelet's " +
		"credential; [drain] identity = \"agent\" does without"
	wayAgent = "set [drain] identity = \"agent\""
	wayNewer = "systemctl try-restart kured-agent"
)

// FindKubelet returns the kubeconfig of this host's kubelet: the one that systemd's LoadCredential= put into the
// directory credentials (empty: there is none) together with copies of the files that it names, or the kubelet's own
// below root, which only root may read. Of several it is the one that says it is for the Node.
func FindKubelet(root, credentials, node string) (path string, copied bool, err error) {
	if credentials != "" {
		path := filepath.Join(credentials, kubeletCredential)
		if _, err := os.Stat(path); err == nil {
			return path, true, nil
		}
	}
	first := ""
	for _, path := range slices.Concat(kubeletKubeconfigs...) {
		full := filepath.Join(root, path)
		_, err := files.Read(full, maxKubeconfig)
		if _, context := kubeletConfig(root, path); errors.Is(err, fs.ErrNotExist) || err == nil && context == nil {
			continue
		}
		if certifiedName(root, path) == node {
			return full, false, nil
		}
		if first == "" {
			first = full // Connect says what is wrong with it
		}
	}
	if first == "" {
		return "", false, &RefusedError{
			Path: kubeletCredential, Way: wayKubelet,
			Problems: []string{"it does not exist, and neither does the kubelet's own in any of the known places (" +
				"/" + strings.Join(slices.Concat(kubeletKubeconfigs...), ", /") + ")"},
		}
	}
	return first, false, nil
}

// takeCopies has the kubeconfig name the copies of its files that lie in dir.
func takeCopies(file *clientcmdapi.Config, dir string) {
	take := func(paths ...*string) {
		for _, path := range paths {
			if *path == "" {
				continue
			}
			copied := filepath.Join(dir, filepath.Base(*path))
			if _, err := os.Stat(copied); err == nil {
				*path = copied
			}
		}
	}
	for _, cluster := range file.Clusters {
		take(&cluster.CertificateAuthority)
	}
	for _, user := range file.AuthInfos {
		take(&user.ClientCertificate, &user.ClientKey, &user.TokenFile)
	}
}

// embedCA makes the same of a copy and of the original, for the fingerprint.
func embedCA(config *rest.Config) error {
	if config.CAFile == "" || len(config.CAData) > 0 {
		return nil
	}
	data, err := files.Read(config.CAFile, maxKubeconfig)
	if err != nil {
		return err
	}
	config.CAData, config.CAFile = data, ""
	return nil
}

// forbidden are the permission bits that everybody must not have on the kubeconfig. Some distributions let everybody read
// a kubelet's that only names the files of its secret.
func (from origin) forbidden(user *clientcmdapi.AuthInfo) fs.FileMode {
	if from.kubelet && user != nil && len(user.ClientKeyData) == 0 && user.Token == "" && user.Password == "" {
		return publicMode
	}
	return secretMode
}

// misplaced says that it is the wrong credential for its place, as far as it shows.
func (from origin) misplaced(config *rest.Config, user string) string {
	if !from.kubelet {
		return kubelet(config, user)
	}
	if name := commonName(config); name != "" && !strings.HasPrefix(name, nodeUser) {
		return fmt.Sprintf("it carries the identity %q, which is no kubelet's", text.Line(name, maxText))
	}
	return ""
}

func (from origin) way() string {
	if from.kubelet {
		return wayKubelet
	}
	return wayEnrol
}

// ProveKubelet asks the API server whether the credential is that of the kubelet of this Node, may handle its pods, and
// is confined to them by the NodeRestriction admission plugin. Nothing is changed. What cannot work comes as a
// *ProofError.
func (c *Client) ProveKubelet(ctx context.Context, node string) error {
	var proof ProofError
	for _, ask := range []func(context.Context, string) (string, error){c.restricted, c.listsPods, c.evicts} {
		problem, err := ask(ctx, node)
		switch {
		case apierrors.IsUnauthorized(err):
			status, _ := api.Refusal(err)
			return &ProofError{Problems: []string{text.Line(status.Message, maxRefusal)}, Way: wayAgent}
		case err != nil:
			return fmt.Errorf("proving the kubelet's credential: %w", err)
		case problem != "":
			proof.Problems, proof.Way = append(proof.Problems, problem), wayAgent
		}
	}
	return proof.orNil(nil)
}

// restricted tries to taint the Node, which the API server refuses every kubelet by the name of its Node: the only thing
// that shows from outside that the plugin is on.
func (c *Client) restricted(ctx context.Context, node string) (problem string, err error) {
	err = c.core.Patch(types.MergePatchType).Resource("nodes").Name(node).Param("dryRun", "All").
		Param("fieldManager", "kured-agent").MaxRetries(0).
		Body([]byte(`{"spec":{"taints":[{"key":"kured-agent/node-restriction","effect":"PreferNoSchedule"}]}}`)).
		Do(ctx).Error()
	switch {
	case err == nil:
		return fmt.Sprintf("the kubelet's credential may taint Node %q, so nothing confines it to the pods of this node: the "+
			"API server runs without the NodeRestriction admission plugin, or the credential is no kubelet's", node), nil
	case !apierrors.IsForbidden(err):
		return "", err
	case !strings.Contains(err.Error(), fmt.Sprintf("node %q is not allowed to modify taints", node)):
		return fmt.Sprintf("it does not show that the credential is that of the kubelet of Node %q, and confined to its pods: %s",
			node, text.Line(err.Error(), maxText)), nil
	}
	return "", nil
}

func (c *Client) listsPods(ctx context.Context, node string) (problem string, err error) {
	err = c.core.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node).Param("limit", "1").MaxRetries(0).
		Do(ctx).Error()
	if apierrors.IsForbidden(err) {
		return fmt.Sprintf("the kubelet's credential may not list the pods of Node %q: %s", node,
			text.Line(err.Error(), maxText)), nil
	}
	return "", err
}

func (c *Client) evicts(ctx context.Context, node string) (problem string, err error) {
	allowed, err := c.may(ctx, right{Resource: "pods", Subresource: "eviction", Verb: "create"}, node)
	if err == nil && !allowed {
		problem = "the kubelet's credential may not create pods/eviction: the API server runs without the Node authorizer"
	}
	return problem, err
}

// Spare says which rights to pods the credential has, although another one is used for them.
func (c *Client) Spare(ctx context.Context) ([]string, error) {
	var spare []string
	for _, r := range podRights {
		allowed, known, err := c.ask(ctx, r, "")
		if err != nil {
			return nil, err
		}
		if allowed && known {
			spare = append(spare, r.String())
		}
	}
	return spare, nil
}
