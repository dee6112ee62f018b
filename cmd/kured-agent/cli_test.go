// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cli runs a command line in a tree of its own, without a bus.
func cli(t *testing.T, files map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(content, "ROOT", root)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, wrong bytes.Buffer
	code = execute(t.Context(),
		append([]string{"--root", root, "--config", filepath.Join(root, "etc/kured/config.toml")}, args...), strings.NewReader(""), &out, &wrong)
	return code, out.String(), strings.ReplaceAll(wrong.String(), root, "")
}

var hostFiles = map[string]string{
	"proc/sys/kernel/random/boot_id": "3b241101-e2bb-4255-8caf-4136c566a962\n",
	"etc/machine-id":                 "0123456789abcdef0123456789abcdef\n",
	"etc/hostname":                   "n1\n",
}

func with(more map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range []map[string]string{hostFiles, more} {
		maps.Copy(all, m)
	}
	return all
}

func TestExitCodesAndWhatIsSaid(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus")
	const pointing = "[node]\nname = \"n1\"\n[cluster]\nkubeconfig = \"ROOT/etc/kured/kubeconfig\"\n"
	const kubeletsOwn = "{clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}], " +
		"users: [{name: 'system:node:n1', user: {token: x}}], " +
		"contexts: [{name: c, context: {cluster: c, user: 'system:node:n1'}}], current-context: c}"
	for _, c := range []struct {
		name  string
		files map[string]string
		args  []string
		code  int
		says  []string
	}{
		{"version", nil, []string{"version"}, 0, []string{"kured-agent dev"}},
		{"an unknown flag is a usage error", nil, []string{"status", "--jason"}, 2,
			[]string{"unknown flag", "; see kured-agent status --help"}},
		{"an unknown command is a usage error", nil, []string{"bogus"}, 2, []string{`"bogus"`, "; see kured-agent --help"}},
		{"too many arguments are a usage error", nil, []string{"plan", "now"}, 2, []string{"--help"}},
		{"a request needs an id", nil, []string{"request"}, 2, []string{"--help"}},
		{"--all alone does not ask for a reboot", nil, []string{"request", "--all", "x"}, 2,
			[]string{"--all takes requests back: give --clear too"}},
		{"--all takes every request, so no id", nil, []string{"request", "--clear", "--all", "x"}, 2, []string{"--help"}},
		{"nobody reads the reason of a request that is taken back", nil, []string{"request", "--clear", "x", "why"}, 2,
			[]string{"no reason"}},
		{"--clear needs an id", nil, []string{"request", "--clear"}, 2, []string{"--help"}},
		{"help teaches", nil, []string{"--help"}, 0, []string{"systemctl enable --now kured-agent", "kubectl kured hold NODE"}},
		{"no configuration", hostFiles, []string{"check-config"}, 1, []string{"/etc/kured/config.toml"}},
		{"every problem of the configuration, with line and key", with(map[string]string{
			"etc/kured/config.toml": "[drian]\n[reboot]\nmin_interval = 30\n",
		}), []string{"check-config", "--offline"}, 1,
			[]string{"config.toml:1", "drain", "config.toml:3", "reboot.min_interval", "30s"}},
		{"no kubeconfig", with(map[string]string{"etc/kured/config.toml": pointing}),
			[]string{"check-config"}, 1,
			[]string{"/etc/kured/kubeconfig\": it does not exist\n", "README"}},
		{"without the cluster the configuration is fine before there is a kubeconfig",
			with(map[string]string{"etc/kured/config.toml": pointing}), []string{"check-config", "--offline"}, 0,
			[]string{"config.toml: fine, for node n1\n", "kubeconfig\" is not there yet\n"}},
		{"a problem a line, and the way out that they share at the end", with(map[string]string{
			"etc/kured/config.toml": pointing, "etc/kured/kubeconfig": kubeletsOwn,
		}), []string{"check-config", "--offline"}, 1,
			[]string{"nor take slots\n", "kubeconfig\": it says insecure-skip-tls-verify", "instead\nkured-agent: give this node"}},
		{"the agent does not start with a wrong configuration, and systemd does not retry", with(map[string]string{
			"etc/kured/config.toml": "[slot]\nmax_hold = \"soon\"\n",
		}), []string{"run"}, 78, []string{"slot.max_hold"}},
		{"the agent does not start without a kubeconfig", with(map[string]string{"etc/kured/config.toml": pointing}),
			[]string{"run"}, 78,
			[]string{"/etc/kured/kubeconfig"}},
		{"a boot with nothing outstanding does not fail for a wrong configuration", with(map[string]string{
			"etc/kured/config.toml": "nonsense",
		}), []string{"boot"}, 0, nil},
		{"a shutdown is not held up by a wrong configuration", with(map[string]string{
			"etc/kured/config.toml": "nonsense",
		}), []string{"shutdown"}, 0, nil},
		{"a shutdown drains nothing by default, and asks nobody", with(map[string]string{"etc/kured/config.toml": pointing}),
			[]string{"shutdown"}, 0, nil},
		{"cleanup needs to know the cluster", with(map[string]string{"etc/kured/config.toml": pointing}),
			[]string{"cleanup"}, 78,
			[]string{"kubeconfig"}},
		{"status without an agent says what the disk knows", with(map[string]string{
			"var/lib/kured-agent/record.json": `{"boot":"b","nodeUID":"u","marked":true}`,
		}), []string{"status"}, 3, []string{"DOES NOT RUN"}},
		{"a request without an agent says where to look", hostFiles, []string{"request", "x"}, 1,
			[]string{"kured-agent.service"}},
		{"an id is no file", nil, []string{"__complete", "request", ""}, 0, []string{":4\n"}},
		{"completions", nil, []string{"completion", "bash"}, 0, []string{"kured-agent"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := cli(t, c.files, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.says {
				if !strings.Contains(stdout+stderr, want) {
					t.Errorf("%q is not in:\n%s%s", want, stdout, stderr)
				}
			}
		})
	}
}
