// SPDX-License-Identifier: Apache-2.0

// Package packaging checks what the packages install: units, policies, scripts, man pages and the list of them. It
// needs no root and builds nothing. Programs that it can do without (systemd-analyze, mandoc) are used where they are
// there.
package packaging

import (
	"encoding/xml"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run fails the test when a program complains, by exit status or in words.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
}

func present(t *testing.T, name string) bool {
	t.Helper()
	_, err := exec.LookPath(name)
	if err != nil {
		t.Logf("not checked by %s, which is not installed", name)
	}
	return err == nil
}

var (
	comment  = regexp.MustCompile(`(?m)^\s*(#|//).*$`)
	source   = regexp.MustCompile(`(?m)^  - src: (\S+)$|^      (?:pre|post)(?:install|remove): (\S+)$`)
	services = []string{"systemd/kured-agent.service", "systemd/kured-agent-boot.service"}
)

// packages are the descriptions of the packages, of the agent's and of the admin's.
var packages = []string{"nfpm.yaml", "packaging/kubectl-kured/nfpm.yaml"}

// sources are the files that the packages install or run.
func sources(t *testing.T) []string {
	var all []string
	for _, m := range source.FindAllStringSubmatch(read(t, packages[0])+read(t, packages[1]), -1) {
		pattern := m[1] + m[2]
		if !strings.Contains(pattern, "*") {
			all = append(all, pattern)
			continue
		}
		matches, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range matches {
			all = append(all, strings.TrimPrefix(match, root+"/"))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestPackagesHoldExactlyTheFilesOfSystemdAndPackaging(t *testing.T) {
	var want []string
	for _, dir := range []string{"systemd", "packaging"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			path = strings.TrimPrefix(path, root+"/")
			// Beside what is installed: build.sh, what explains and tests the manifests, and the packages' descriptions.
			if ext := filepath.Ext(path); err == nil && !d.IsDir() && ext != ".sh" && ext != ".md" && ext != ".go" &&
				!slices.Contains(packages, path) {
				want = append(want, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, path := range sources(t) {
		if strings.HasPrefix(path, "systemd/") || strings.HasPrefix(path, "packaging/") {
			got = append(got, path)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in the tree (-) and in the packages (+):\n%s", diff)
	}
}

func TestEveryInstalledFileHasItsModeSpelledOut(t *testing.T) {
	for _, path := range packages {
		_, contents, _ := strings.Cut(read(t, path), "\ncontents:")
		for _, entry := range strings.Split(comment.ReplaceAllString(contents, ""), "\n  - ")[1:] {
			if !strings.Contains(entry, "file_info:") && !strings.HasPrefix(entry, "<<: *dir") {
				t.Errorf("%s: no mode, it would follow the umask of the builder:\n%s", path, entry)
			}
		}
	}
}

func TestUnitsPassSystemdAnalyze(t *testing.T) {
	if !present(t, "systemd-analyze") {
		return
	}
	dir := t.TempDir()
	paths, err := filepath.Glob(root + "/systemd/*.[st]*") // services and targets
	if err != nil {
		t.Fatal(err)
	}
	var units []string
	for _, path := range paths {
		if ext := filepath.Ext(path); ext != ".service" && ext != ".target" {
			continue
		}
		text := read(t, strings.TrimPrefix(path, root+"/"))
		unit := filepath.Join(dir, filepath.Base(path))
		// The agent itself is not installed here, and verify looks for it.
		if err := os.WriteFile(unit, []byte(strings.ReplaceAll(text, "/usr/bin/kured-agent", "/bin/true")),
			0o644); err != nil {
			t.Fatal(err)
		}
		units = append(units, unit)
	}
	run(t, "systemd-analyze", append([]string{"verify", "--man=no"}, units...)...)
	for _, service := range services {
		// In tenths: an exposure under 1.5.
		run(t, "systemd-analyze", "security", "--offline=yes", "--threshold=15", filepath.Join(dir, filepath.Base(service)))
	}
}

// sandbox returns the sandbox directives of a service: those from CapabilityBoundingSet= to UMask=.
func sandbox(t *testing.T, path string) []string {
	_, text, _ := strings.Cut(comment.ReplaceAllString(read(t, path), ""), "\nCapabilityBoundingSet=")
	text, _, ok := strings.Cut("CapabilityBoundingSet="+text, "\n[Install]")
	if !ok {
		t.Fatalf("%s has no sandbox", path)
	}
	return strings.Fields(text)
}

func TestBothServicesHaveOneSortedSandbox(t *testing.T) {
	agent, boot := sandbox(t, services[0]), sandbox(t, services[1])
	if diff := cmp.Diff(agent, boot); diff != "" {
		t.Errorf("%s (-) and %s (+):\n%s", services[0], services[1], diff)
	}
	var names []string
	for _, directive := range agent {
		if name, _, ok := strings.Cut(directive, "="); ok {
			names = append(names, name)
		}
	}
	if !slices.IsSorted(names) {
		t.Errorf("not sorted: %v", names)
	}
	if len(names) < 25 {
		t.Errorf("only %d directives: %v", len(names), names)
	}
}

func TestServicesShareTheirUserAndDirectories(t *testing.T) {
	for _, path := range services {
		text := read(t, path)
		for _, line := range []string{
			"User=kured-agent", "Group=kured-agent", "StateDirectory=kured-agent", "StateDirectoryMode=0700",
			"RuntimeDirectory=kured-agent",
			// Or the end of the boot unit takes the directory from the running agent.
			"RuntimeDirectoryPreserve=yes",
			"Restart=on-failure", "RestartPreventExitStatus=2 78", "StartLimitIntervalSec=0",
		} {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("%s lacks %s", path, line)
			}
		}
	}
}

func TestPolkitAllowsTheRebootAndOneTargetOnly(t *testing.T) {
	rule := comment.ReplaceAllString(read(t, "packaging/polkit/50-kured-agent.rules"), "")
	actions := regexp.MustCompile(`"(org\.[^"]*)"`).FindAllStringSubmatch(rule, -1)
	var got []string
	for _, action := range actions {
		got = append(got, action[1])
	}
	want := []string{
		"org.freedesktop.login1.reboot", "org.freedesktop.login1.reboot-multiple-sessions",
		"org.freedesktop.systemd1.manage-units",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{
		`subject.user != "kured-agent"`,
		`action.lookup("unit") == "kured-agent-pre-reboot.target" && action.lookup("verb") == "start"`,
	} {
		if !strings.Contains(rule, part) {
			t.Errorf("the rule lacks %s", part)
		}
	}
	if n := strings.Count(rule, "Result.YES"); n != 2 {
		t.Errorf("%d places say yes, want the reboot and the target", n)
	}

	old := comment.ReplaceAllString(read(t, "packaging/polkit/kured-agent.pkla"), "")
	for _, line := range []string{
		"Identity=unix-user:kured-agent", "Action=" + strings.Join(want[:2], ";"),
		"ResultAny=yes", "ResultInactive=yes", "ResultActive=yes",
	} {
		if !strings.Contains(old, "\n"+line+"\n") {
			t.Errorf("the .pkla lacks %s", line)
		}
	}
	if n := strings.Count(old, "Action="); n != 1 {
		t.Errorf("the .pkla has %d lists of actions", n)
	}
}

func TestBusPolicyAllowsNothingElse(t *testing.T) {
	type rule struct {
		Own       string `xml:"own,attr"`
		To        string `xml:"send_destination,attr"`
		Interface string `xml:"send_interface,attr"`
		Member    string `xml:"send_member,attr"`
	}
	type policy struct {
		User    string `xml:"user,attr"`
		Context string `xml:"context,attr"`
		Allow   []rule `xml:"allow"`
	}
	var got struct {
		Policies []policy `xml:"policy"`
	}
	if err := xml.Unmarshal([]byte(read(t, "packaging/dbus/org.kured.Agent1.conf")), &got); err != nil {
		t.Fatal(err)
	}
	const agent, standard = "org.kured.Agent1", "org.freedesktop.DBus."
	asks := []rule{
		{Own: agent},
		{To: agent, Interface: agent, Member: "RequireReboot"},
		{To: agent, Interface: agent, Member: "ClearReboot"},
	}
	want := []policy{
		{User: "kured-agent", Allow: append(slices.Clone(asks),
			rule{To: "com.coreos.update1", Interface: "com.coreos.update1.Manager", Member: "GetStatus"},
			rule{To: "org.freedesktop.sysupdate1", Interface: "org.freedesktop.sysupdate1.Target", Member: "GetVersion"})},
		{User: "root", Allow: asks},
		{Context: "default", Allow: []rule{
			{To: agent, Interface: standard + "Properties", Member: "Get"},
			{To: agent, Interface: standard + "Properties", Member: "GetAll"},
			{To: agent, Interface: standard + "Introspectable", Member: "Introspect"},
		}},
	}
	if diff := cmp.Diff(want, got.Policies); diff != "" {
		t.Error(diff)
	}
}

func TestMaintainerScriptsAreValidShell(t *testing.T) {
	for _, path := range sources(t) {
		if strings.HasPrefix(path, "packaging/deb/") || strings.HasPrefix(path, "packaging/rpm/") {
			if !strings.HasPrefix(read(t, path), "#!/bin/sh\n") {
				t.Errorf("%s is not for /bin/sh", path)
			}
			run(t, "sh", "-n", filepath.Join(root, path))
		}
	}
}

func TestInstallingEnablesNothingAndStartsNothing(t *testing.T) {
	forbidden := regexp.MustCompile(`[ -](?:enable|preset|reenable|start|restart|reload-or-restart)\b`)
	for _, path := range []string{"packaging/deb/postinst", "packaging/rpm/pre", "packaging/rpm/post",
		"packaging/rpm/postun"} {
		text := strings.ReplaceAll(comment.ReplaceAllString(read(t, path), ""), "try-restart kured-agent.service", "")
		if found := forbidden.FindString(text); found != "" {
			t.Errorf("%s contains %q", path, found)
		}
	}
}

func TestManPagesAreClean(t *testing.T) {
	pages, err := filepath.Glob(root + "/docs/man/*.[0-9]")
	if err != nil || len(pages) != 3 {
		t.Fatalf("found %v, %v", pages, err)
	}
	if present(t, "mandoc") {
		run(t, "mandoc", append([]string{"-T", "lint", "-W", "warning"}, pages...)...)
	}
}

func TestUnitsPointToManPagesThatExist(t *testing.T) {
	for _, path := range append(slices.Clone(services), "systemd/kured-agent-pre-reboot.target") {
		for _, m := range regexp.MustCompile(`man:(\S+)\((\d)\)`).FindAllStringSubmatch(read(t, path), -1) {
			read(t, "docs/man/"+m[1]+"."+m[2])
		}
	}
}

func TestManPageNamesEveryKeyOfTheExampleWithItsDefault(t *testing.T) {
	heading, key := regexp.MustCompile(`^\[[a-z_.\[\]]+\]`), regexp.MustCompile(`^([a-z_]+) = (.*)`)
	page := strings.ReplaceAll(read(t, "docs/man/kured-agent.toml.5"), `\(dq`, `"`)
	table, section := "", ""
	for line := range strings.SplitSeq(read(t, "config.example.toml"), "\n") {
		isDefault := strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "#~")
		line = strings.TrimLeft(line, "#~ ")
		if found := heading.FindString(line); found != "" {
			table = found
			_, section, _ = strings.Cut(page, "\n.Sh "+table)
			section, _, _ = strings.Cut(section, "\n.Sh ")
			if section == "" {
				t.Errorf("the man page has no section %s", table)
			}
		}
		if m := key.FindStringSubmatch(line); m != nil {
			item := "\n.It Ic " + m[1]
			if isDefault {
				item += " Pq Li " + m[2] + "\n"
			}
			if !strings.Contains(section, item) {
				t.Errorf("in section %s the man page lacks %q", table, strings.TrimSpace(item))
			}
		}
	}
}
