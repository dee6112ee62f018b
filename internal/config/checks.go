// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kured-agent/kured-agent/internal/text"
)

var (
	ownEffects = []string{"PreferNoSchedule", "NoSchedule"}
	allEffects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}
)

// wellFormed turns what Kubernetes finds wrong with a name into an error, without its examples and expressions.
func wellFormed(s, what string, problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	problem, _, _ := strings.Cut(problems[0], " (e.g.")
	return fmt.Errorf("%s is not %s: %s", quote(s), what, problem)
}

func nodeName(s string) error {
	return wellFormed(s, "the name of a Node", validation.IsDNS1123Subdomain(s))
}

// poolName checks a pool, which becomes part of a Lease's name and the value of a label.
func poolName(s string) error {
	return wellFormed(s, "the name of a pool", validation.IsDNS1123Label(s))
}

func taintKey(s string) error {
	return wellFormed(s, "a taint key", content.IsLabelKey(s))
}

// startupTaint checks a taint key, or key:Effect.
func startupTaint(s string) error {
	key, effect, ok := strings.Cut(s, ":")
	switch {
	case strings.Contains(key, "="):
		return fmt.Errorf("%s has a value: write the key alone, or key:Effect", quote(s))
	case ok && !slices.Contains(allEffects, effect):
		return fmt.Errorf("%s is not an effect: write %s", quote(effect), choices(allEffects))
	}
	// Kubernetes puts these back for as long as they are true.
	for _, owner := range []string{"node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"} {
		if strings.HasPrefix(key, owner) {
			return fmt.Errorf("%s belongs to Kubernetes, which removes it by itself", quote(key))
		}
	}
	return taintKey(key)
}

func selector(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("is blank, which would select every pod")
	}
	if _, err := labels.Parse(s); err != nil {
		return fmt.Errorf("%s is not a label selector: %s", quote(s), text.Cut(err.Error(), 256)) // it repeats the text
	}
	return nil
}

func absolute(s string) error {
	if !filepath.IsAbs(s) || strings.ContainsRune(s, 0) {
		return fmt.Errorf("%s is not an absolute path", quote(s))
	}
	return nil
}

// webURL does not print the URL: the path of a webhook is often its password.
func webURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return errors.New(`is not a URL that starts with "https://" or "http://" and a host`)
	}
	return nil
}

func listenAddress(s string) error {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		return absolute(path)
	}
	host, port, err := net.SplitHostPort(s)
	if err == nil {
		number, e := strconv.ParseUint(port, 10, 16)
		if e != nil || number == 0 || !listenHost(host) {
			err = errors.New("no such address")
		}
	}
	if err != nil {
		return fmt.Errorf(`%s is not an address: write "127.0.0.1:9617", "[::1]:9617" or "unix:/run/..."`, quote(s))
	}
	return nil
}

func listenHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return true
	}
	return len(validation.IsDNS1123Subdomain(host)) == 0
}

func loadLocation(s string) (*time.Location, error) {
	location, err := time.LoadLocation(s)
	if err != nil {
		return nil, fmt.Errorf(`%s is not a time zone: write a name such as "Europe/Berlin", "UTC", `+
			`or "Local" for the host's`, quote(s))
	}
	return location, nil
}
