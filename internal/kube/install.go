// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/text"
)

// ServerAuto stands for the API server that the kubelet of this host talks to.
const ServerAuto = "auto"

// Installation says what a kubeconfig becomes before it is installed.
type Installation struct {
	Dir    string // where its relative paths begin; empty: it came without a place, so it may have none
	Server string // URL, or ServerAuto; empty: what it says, and ServerAuto when it says nothing
	Root   string // of the host's files
}

// Prepared is a kubeconfig that needs no other file but the one its tokenFile names.
type Prepared struct {
	Content []byte
	Server  string // URL
	From    string // where the URL is from: a file, or words
}

// Prepare reduces a kubeconfig to its current context, embeds certificates and keys, and points it to the API server.
func Prepare(content []byte, o Installation) (Prepared, error) {
	config, err := oneContext(content)
	if err != nil {
		return Prepared{}, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	context := config.Contexts[config.CurrentContext]
	cluster, user := config.Clusters[context.Cluster], config.AuthInfos[context.AuthInfo]
	p := Prepared{From: "the kubeconfig"}
	switch {
	case o.Server == ServerAuto, o.Server == "" && cluster.Server == "":
		found, from, err := kubeletCluster(o.Root)
		if err != nil {
			return Prepared{}, err
		}
		*cluster, p.From = *found, "/"+from
	case o.Server != "":
		cluster.Server, p.From = o.Server, "--server"
	}
	if err := embed(cluster, user, o.Dir); err != nil {
		return Prepared{}, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	p.Server = text.Line(cluster.Server, maxText)
	if p.Content, err = clientcmd.Write(*config); err != nil {
		return Prepared{}, fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return p, nil
}

// oneContext leaves out what else an admin's kubeconfig may hold: other clusters, and other people's credentials.
func oneContext(content []byte) (*clientcmdapi.Config, error) {
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, err
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil {
		return nil, errors.New("it has no current context: is it a kubeconfig?")
	}
	user := config.AuthInfos[context.AuthInfo]
	if user == nil {
		return nil, errors.New("it holds no credential")
	}
	cluster := config.Clusters[context.Cluster]
	if cluster == nil { // as good as one without a server
		cluster = clientcmdapi.NewCluster()
	}
	const name = "cluster"
	one := clientcmdapi.NewConfig()
	one.Clusters[name], one.AuthInfos[context.AuthInfo] = cluster, user
	one.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: context.AuthInfo}
	one.CurrentContext = name
	return one, nil
}

// embed replaces the names of files with what is in them. A token file keeps its name: it is there to change.
func embed(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo, dir string) error {
	for _, file := range []struct {
		path *string
		data *[]byte
	}{
		{&cluster.CertificateAuthority, &cluster.CertificateAuthorityData},
		{&user.ClientCertificate, &user.ClientCertificateData},
		{&user.ClientKey, &user.ClientKeyData},
		{&user.TokenFile, nil},
	} {
		switch {
		case *file.path == "":
			continue
		case !filepath.IsAbs(*file.path) && dir == "":
			return fmt.Errorf("it names the file %q, which is not in it: kubectl config view --minify --raw --flatten embeds it",
				text.Line(*file.path, maxText))
		case !filepath.IsAbs(*file.path):
			*file.path = filepath.Join(dir, *file.path)
		}
		if file.data == nil {
			continue
		}
		if len(*file.data) == 0 { // else it wins, as in client-go
			content, err := files.Read(*file.path, maxKubeconfig)
			if err != nil {
				return err
			}
			*file.data = content
		}
		*file.path = ""
	}
	return nil
}

// kubeletCluster is the API server that the kubelet's configuration below root names, with its CA embedded.
func kubeletCluster(root string) (cluster *clientcmdapi.Cluster, from string, err error) {
	found := map[string]string{} // path by URL
	for _, paths := range kubeletKubeconfigs {
		for _, path := range paths {
			config, context := kubeletConfig(root, path)
			if context == nil {
				continue
			}
			if c := config.Clusters[context.Cluster]; c != nil && c.Server != "" {
				if found[c.Server] == "" {
					cluster, from, found[c.Server] = c, path, path
				}
				break
			}
		}
	}
	switch {
	case len(found) > 1:
		return nil, "", fmt.Errorf("finding the API server: kubelet configurations disagree (%s): say --server URL",
			disagreement(found))
	case cluster == nil:
		return nil, "", fmt.Errorf("finding the API server: none of the known files says where the kubelet finds it (%s): "+
			"say --server URL", "/"+strings.Join(slices.Concat(kubeletKubeconfigs...), ", /"))
	}
	if cluster.CertificateAuthority != "" && len(cluster.CertificateAuthorityData) == 0 {
		cluster.CertificateAuthorityData, err = readBeside(root, from, cluster.CertificateAuthority)
		if err != nil {
			return nil, "", fmt.Errorf("reading the CA that /%s names: %w", from, err)
		}
	}
	return &clientcmdapi.Cluster{
		Server: cluster.Server, CertificateAuthorityData: cluster.CertificateAuthorityData,
		TLSServerName: cluster.TLSServerName,
	}, from, nil
}
