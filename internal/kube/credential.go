// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	wayEnrol = `give this node its own credential, see "Enrolling a node" in the README`

	nodeUser  = "system:node:"
	agentUser = "kured-agent:" // followed by the name of the Node, in client certificates
)

// wayAgain is the way out for a node that had a credential.
func wayAgain(node string) string {
	if node == "" {
		node = "NODE"
	}
	return fmt.Sprintf("enrol this node again: kubectl kured enroll %[1]s | ssh %[1]s sudo kured-agent enroll --kubeconfig -",
		text.Line(node, maxText))
}

// Permission bits that everybody must not have.
const (
	secretMode fs.FileMode = 0o006 // of a file with a secret in it
	publicMode fs.FileMode = 0o002
)

// exposed says whether somebody who is neither root nor the agent can do with the file what forbidden says, or change it.
func exposed(path string, info fs.FileInfo, forbidden fs.FileMode, owners []int) string {
	if why := files.Foreign(info, 0, owners); why != "" {
		return fmt.Sprintf("%q %s", path, why)
	}
	mode := info.Mode().Perm()
	if mode&forbidden != 0 {
		return fmt.Sprintf("everybody on this host can read or write %q (mode %04o): chmod o-rwx %s", path, mode, path)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if ok && mode&0o020 != 0 && !ownGroup(int(stat.Gid)) {
		return fmt.Sprintf("group %d can write %q (mode %04o): chmod g-w %s", stat.Gid, path, mode, path)
	}
	return ""
}

// exposedSecret does the same for a file that the kubeconfig names.
func exposedSecret(path string, owners []int) string {
	if path == "" {
		return ""
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Sprintf("its credential file %q cannot be read: %v", path, err)
	}
	return exposed(path, info, secretMode, owners)
}

func ownGroup(gid int) bool {
	groups, _ := os.Getgroups() // on an error only the two below are ours
	return gid == 0 || gid == os.Getegid() || slices.Contains(groups, gid)
}

func plugin(config *rest.Config) string {
	switch {
	case config.ExecProvider != nil:
		return fmt.Sprintf("it gets its credential from the program %q, and the agent starts no programs: have a timer of "+
			"yours write the token to a file that the kubeconfig names as tokenFile (the agent sees every change of it)",
			text.Line(config.ExecProvider.Command, maxText))
	case config.AuthProvider != nil:
		return fmt.Sprintf("auth provider %q is not supported", text.Line(config.AuthProvider.Name, maxText))
	}
	return ""
}

// kubelet refuses the kubelet's own credential, the first thing people try.
func kubelet(config *rest.Config, user string) string {
	name := kubeletUser(config, user)
	if name == "" {
		return ""
	}
	return kubeletProblem(text.Line(name, maxText))
}

// kubeletUser is the kubelet's identity in the credential, or empty.
func kubeletUser(config *rest.Config, user string) string {
	for _, candidate := range []string{commonName(config), user, config.Username, config.Impersonate.UserName} {
		if strings.HasPrefix(candidate, nodeUser) {
			return candidate
		}
	}
	return ""
}

func kubeletProblem(name string) string {
	return fmt.Sprintf("it carries the identity %q: kubelet credentials cannot change taints (the NodeRestriction "+
		"admission plugin forbids it) nor take slots", name)
}

func insecure(config *rest.Config) string {
	if config.Insecure {
		return "it says insecure-skip-tls-verify, so anybody on the way could take the credential: " +
			"give certificate-authority-data instead"
	}
	if !strings.HasPrefix(config.Host, "https://") {
		return fmt.Sprintf("server %q is not an https URL", text.Line(config.Host, maxText))
	}
	return ""
}

// commonName of the client certificate, or empty when there is none or it cannot be read now.
func commonName(config *rest.Config) string {
	if cert := clientCertificate(config); cert != nil {
		return cert.Subject.CommonName
	}
	return ""
}

func clientCertificate(config *rest.Config) *x509.Certificate {
	data := config.CertData
	if len(data) == 0 && config.CertFile != "" {
		data, _ = files.Read(config.CertFile, maxKubeconfig) // an unreadable file has its say when the first request uses it
	}
	return parseCertificate(data)
}

func parseCertificate(data []byte) *x509.Certificate {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil
		}
		return cert
	}
	return nil
}

// identity describes whose credential it is, for hashing only.
func identity(config *rest.Config, bearer *bearer) string {
	ca := sha256.Sum256(config.CAData)
	parts := []string{config.Host, config.CAFile, string(ca[:]), config.Username}
	if cert := clientCertificate(config); cert != nil {
		parts = append(parts, cert.Subject.String(), cert.Issuer.String())
	}
	if bearer != nil {
		token, _ := bearer.token()
		if token.Subject != "" {
			parts = append(parts, token.Issuer, token.Subject, token.Kubernetes.Node.Name, token.Kubernetes.Node.UID)
		} else {
			parts = append(parts, token.text)
		}
	}
	return strings.Join(parts, "\x00")
}

func fingerprint(identity, nodeName string) string {
	sum := sha256.Sum256([]byte(identity + "\x00" + nodeName))
	return hex.EncodeToString(sum[:16])
}
