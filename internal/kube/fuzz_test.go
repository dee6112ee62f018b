// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

func sealed(payload string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
}

func TestTheRenewalsOfAFleetAreSpreadAroundTheHalfOfTheLifetime(t *testing.T) {
	const life = 30 * 24 * time.Hour
	early, late := 0, 0
	for i := range 1000 {
		c := claims{Issued: 1_800_000_000, Expires: numericDate(1_800_000_000 + life.Seconds())}
		c.Kubernetes.Node.UID = strings.Repeat("x", i%7) + string(rune('a'+i%26)) + time.Duration(i).String()
		switch age := c.due().Sub(c.issued()); {
		case age < life*45/100 || age > life*55/100+1:
			t.Fatalf("due after %s", age)
		case age < life*47/100:
			early++
		case age > life*53/100:
			late++
		}
		if again := c.due(); !again.Equal(c.due()) {
			t.Fatal("not the same twice")
		}
	}
	if early < 100 || late < 100 {
		t.Errorf("%d early and %d late of 1000", early, late)
	}
}

// FuzzToken: whatever claims to be a token, its dates are usable or none, and an unusable one is an error without it.
func FuzzToken(f *testing.F) {
	f.Add(sealed(`{"sub":"s","iat":1800000000,"exp":1.8e9,"kubernetes.io":{"node":{"name":"n","uid":"u"}}}`))
	f.Add(sealed(`{"sub":"s","iat":-1,"exp":1e300}`))
	f.Add(sealed(`{"sub":"s","iat":1e999,"exp":null,"kubernetes.io":null}`))
	f.Add("a.b.c")
	f.Add("..")
	f.Add("secret secret\r\nX: y")
	f.Fuzz(func(t *testing.T, content string) {
		token, err := readToken(content)
		if err != nil {
			if len(content) > 12 && strings.Contains(err.Error(), strings.TrimSpace(content)) {
				t.Errorf("%q shows the token", err)
			}
			return
		}
		if strings.ContainsAny(token.text, "\r\n \x00") || token.text == "" {
			t.Errorf("%q would be shown to the server", token.text)
		}
		if token.lifetime() < 0 || token.issued().Year() > 9999 || token.expires().Year() > 9999 ||
			token.lifetime() > 0 && token.due().Before(token.issued()) {
			t.Errorf("issued %s, due %s, expires %s", token.issued(), token.due(), token.expires())
		}
		if best := newer(token, token, time.Now()); best.text != token.text {
			t.Error("of one token another was chosen")
		}
		if _, err := json.Marshal(tokenRequest(token)); err != nil {
			t.Error(err)
		}
	})
}

// FuzzAnswer: no answer of a server makes the agent use a token of another identity.
func FuzzAnswer(f *testing.F) {
	present := token{text: "x", claims: readClaims(sealed(`{"sub":"s","iss":"i","kubernetes.io":{"node":{"name":"n","uid":"u"}}}`))}
	f.Add([]byte(`{"status":{"token":"` + sealed(`{"sub":"s","iss":"i","kubernetes.io":{"node":{"name":"n","uid":"u"}}}`) + `"}}`))
	f.Add([]byte(`{"status":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if next, err := readAnswer(raw, present); err == nil && next.of() != present.of() {
			t.Errorf("%+v was taken for %+v", next.of(), present.of())
		}
	})
}

// FuzzNodeName: whatever stands in the files of the kubelet, the name is one that a Node can have, or an error.
func FuzzNodeName(f *testing.F) {
	f.Add(0, []byte("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {user: system:node:n1}}]\n"))
	f.Add(1, []byte(`KUBELET_KUBEADM_ARGS="--hostname-override=n1 --x"`))
	f.Add(2, []byte("node-name: n1\n"))
	f.Add(3, []byte("K3S_NODE_NAME='n1'\n"))
	f.Add(4, []byte("A Host\n"))
	paths := []string{kubeletKubeconfigs[0][0], kubeletFlags[0], rancherConfigs[0], rancherEnvironments[0], "etc/hostname"}
	f.Fuzz(func(t *testing.T, which int, content []byte) {
		root := t.TempDir()
		path := filepath.Join(root, paths[uint(which)%uint(len(paths))])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if name, err := FindNodeName(root, "", ""); err == nil && len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Errorf("%q is no name of a Node", name)
		}
	})
}
