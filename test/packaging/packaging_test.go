// SPDX-License-Identifier: Apache-2.0

// Package packaging checks what the packages install: units, policies, scripts, man pages and the list of them. It
// needs no root and builds nothing. Programs that it can do without (systemd-analyze, mandoc) are used where they are
// there.
package packaging

import (
	"encoding/xml"
	"errors"
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
	services = []string{
		"systemd/kured-agent.service", "systemd/kured-agent-boot.service", "systemd/kured-agent-shutdown.service",
	}
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

// checks are the drop-ins that make an instance of the check unit.
var checks = map[string]string{
	"dnf":    "systemd/kured-agent-check@dnf.conf",
	"zypper": "systemd/kured-agent-check@zypper.conf",
	"kernel": "packaging/examples/check-kernel.conf",
}

const checkTemplate = "systemd/kured-agent-check@.service"

// units are the texts of what systemd loads, by name.
func units(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range []string{"systemd", "packaging/examples"} {
		for _, pattern := range []string{"*.path", "*.service", "*.target"} {
			paths, err := filepath.Glob(filepath.Join(root, dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				all[filepath.Base(path)] = read(t, strings.TrimPrefix(path, root+"/"))
			}
		}
	}
	template := all[filepath.Base(checkTemplate)]
	delete(all, filepath.Base(checkTemplate)) // without an ExecStart= it is none
	for name, dropIn := range checks {
		all["kured-agent-check@"+name+".service"] = template + read(t, dropIn)
	}
	return all
}

func TestUnitsPassSystemdAnalyze(t *testing.T) {
	if !present(t, "systemd-analyze") {
		return
	}
	dir := t.TempDir()
	// Programs that are not on this host, for which verify looks.
	program := regexp.MustCompile(`(?m)^(ExecStart|ExecStop)=/usr/\S+`)
	var paths []string
	for name, text := range units(t) {
		unit := filepath.Join(dir, name)
		if err := os.WriteFile(unit, []byte(program.ReplaceAllString(text, "$1=/bin/true")), 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, unit)
	}
	run(t, "systemd-analyze", append([]string{"verify", "--man=no"}, paths...)...)
	for _, service := range services {
		// In tenths: an exposure under 1.5.
		run(t, "systemd-analyze", "security", "--offline=yes", "--threshold=15", filepath.Join(dir, filepath.Base(service)))
	}
	for name := range checks {
		run(t, "systemd-analyze", "security", "--offline=yes", "--threshold=30",
			filepath.Join(dir, "kured-agent-check@"+name+".service"))
	}
}

// The exit code of dnf alone tells nothing: 1 is its "yes", its "no such plugin" and its "no network".
func TestTheDnfCheckAnswersOnlyWhatDnfSaid(t *testing.T) {
	_, script, ok := strings.Cut(read(t, checks["dnf"]), "\nExecStart=/bin/sh -c '")
	script, _, ok2 := strings.Cut(script, "'\n")
	if !ok || !ok2 {
		t.Fatal("the unit has no script")
	}
	const (
		yes = "Core libraries or services have been updated since boot-up:\n  * glibc\n\n" +
			"Reboot is required to fully utilize these updates.\nMore information: https://access.redhat.com/solutions/27943\n"
		no   = "No core libraries or services have been updated since boot-up.\nReboot should not be necessary.\n"
		dnf5 = "Updating and loading repositories:\nRepositories loaded.\n"
	)
	// As systemd reads it: a line that ends with a backslash goes on, and $$ is a dollar sign.
	in := func(dir string) *exec.Cmd {
		text := strings.NewReplacer("\\\n", " ", "$$", "$", "/usr/bin/", dir+"/").Replace(script)
		return exec.CommandContext(t.Context(), "/bin/sh", "-c", text)
	}
	for name, c := range map[string]struct {
		said string
		code string
		want int
	}{
		"dnf says no":               {no, "0", 0},
		"dnf says yes":              {yes, "1", 102},
		"dnf5 says no":              {dnf5 + no, "0", 0},
		"dnf5 says yes":             {dnf5 + yes, "1", 102},
		"no plugin":                 {"No such command: needs-restarting.\n", "1", 1},
		"no network":                {dnf5 + "Failed to download metadata\n", "1", 1},
		"another version's options": {"Unknown argument \"--reboothint\"\n", "2", 1},
		"nothing":                   {"", "1", 1},
		"no word with success":      {"", "0", 1},
		"yes with success":          {yes, "0", 1},
		"no with a failure":         {no, "1", 1},
		"yes and a crash":           {yes, "139", 1},
		"the lock":                  {"", "200", 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, program := range []string{"dnf5", "dnf"} {
				dir := t.TempDir()
				fake := "#!/bin/sh\n[ \"$*\" = 'needs-restarting --reboothint' ] || exit 99\n" +
					"cat <<'.'\n" + c.said + ".\nexit " + c.code + "\n"
				if err := os.WriteFile(filepath.Join(dir, program), []byte(fake), 0o755); err != nil { //nolint:gosec // it is run
					t.Fatal(err)
				}
				out, err := in(dir).CombinedOutput()
				got := 0
				if exit, ok := errors.AsType[*exec.ExitError](err); ok {
					got = exit.ExitCode()
				}
				if got != c.want {
					t.Errorf("%s: the check exits with %d, want %d; it says:\n%s", program, got, c.want, out)
				}
			}
		})
	}
	if out, err := in(t.TempDir()).CombinedOutput(); err == nil {
		t.Errorf("without dnf the check succeeds: %s", out)
	}
}

// A check with a /proc of its own sees process 1 as just started, and dnf finds no update since then.
func TestTheCheckUnitKeepsTheHostsProc(t *testing.T) {
	text := comment.ReplaceAllString(read(t, checkTemplate), "")
	for _, directive := range []string{
		"ProtectProc=", "ProcSubset=", "ProtectControlGroups=", "ProtectKernelTunables=", "PrivatePIDs=", "PrivateUsers=",
		"MountAPIVFS=", "RemainAfterExit=",
	} {
		if strings.Contains(text, directive) {
			t.Errorf("the check unit has %s", directive)
		}
	}
	for _, line := range []string{
		"Type=oneshot", "SuccessExitStatus=102", "TimeoutStartSec=5min", "StartLimitIntervalSec=0",
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the check unit lacks %s", line)
		}
	}
}

// sandbox returns the sandbox directives of a service: those from CapabilityBoundingSet= to UMask=.
func sandbox(t *testing.T, path string) []string {
	_, text, _ := strings.Cut(comment.ReplaceAllString(read(t, path), ""), "\nCapabilityBoundingSet=")
	if text == "" {
		t.Fatalf("%s has no sandbox", path)
	}
	text, _, _ = strings.Cut("CapabilityBoundingSet="+text, "\n[Install]")
	return strings.Fields(text)
}

func TestAllServicesHaveOneSortedSandbox(t *testing.T) {
	agent := sandbox(t, services[0])
	for _, other := range services[1:] {
		if diff := cmp.Diff(agent, sandbox(t, other)); diff != "" {
			t.Errorf("%s (-) and %s (+):\n%s", services[0], other, diff)
		}
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
		needs(t, path,
			"User=kured-agent", "Group=kured-agent", "StateDirectory=kured-agent", "StateDirectoryMode=0700",
			"RuntimeDirectory=kured-agent",
			// Or the end of the boot unit takes the directory from the running agent.
			"RuntimeDirectoryPreserve=yes")
	}
	for _, path := range services[:2] { // those that run something to its end
		needs(t, path, "Restart=on-failure", "RestartPreventExitStatus=2 78", "StartLimitIntervalSec=0")
	}
}

// needs fails the test where the file lacks one of the lines.
func needs(t *testing.T, path string, lines ...string) {
	t.Helper()
	text := read(t, path)
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%s lacks %s", path, line)
		}
	}
}

// What gives pods back after a boot waits for the same kubelets that a shutdown drains before.
func TestTheShutdownStopsBeforeEveryKubeletThatABootWaitsFor(t *testing.T) {
	after := func(path string) []string {
		var all []string
		for _, m := range regexp.MustCompile(`(?m)^After=(.*)$`).FindAllStringSubmatch(read(t, path), -1) {
			all = append(all, strings.Fields(m[1])...)
		}
		return all
	}
	shutdown := after(services[2])
	for _, unit := range after(services[1]) {
		if strings.HasSuffix(unit, ".service") && !slices.Contains(shutdown, unit) {
			t.Errorf("%s may stop before the drain has ended", unit)
		}
	}
}

// It goes with the agent, so that a node is never cordoned that no boot gives back, and so that nothing must enable it.
func TestTheShutdownUnitLivesAsLongAsTheAgent(t *testing.T) {
	needs(t, services[0], "Wants=kured-agent-shutdown.service")
	needs(t, services[2], "StopWhenUnneeded=yes", "RemainAfterExit=yes")
	if strings.Contains(read(t, services[2]), "\n[Install]") {
		t.Errorf("%s can be enabled without the agent", services[2])
	}
}

func TestPolkitAllowsTheRebootTheHooksAndTheChecksOnly(t *testing.T) {
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
	for _, part := range []string{`subject.user != "kured-agent"`, `action.lookup("verb") == "start" &&`} {
		if !strings.Contains(rule, part) {
			t.Errorf("the rule lacks %s", part)
		}
	}
	if n := strings.Count(rule, "Result.YES"); n != 2 {
		t.Errorf("%d places say yes, want the reboot and the units", n)
	}
	form := regexp.MustCompile(`/(\^.*\$)/\.test\(action\.lookup\("unit"\)\)`).FindStringSubmatch(rule)
	if form == nil {
		t.Fatal("the rule has no form of units")
	}
	// The form uses nothing that JavaScript and Go read differently; the machines of test/e2e ask polkit itself.
	allowed := regexp.MustCompile(form[1])
	for unit, want := range map[string]bool{
		"kured-agent-pre-reboot.target": true, "kured-agent-check@dnf.service": true, "kured-agent-check@a_b-2.service": true,
		"kured-agent.service": false, "kured-agent-boot.service": false, "kured-agent-check@.service": false,
		"kured-agent-check@dnf.socket": false, "kured-agent-check@dnf.service.d": false,
		"x-kured-agent-check@dnf.service": false,
		"kured-agent-pre-rebootxtarget":   false, "kured-agent-check@a\\x2eb.service": false,
		"reboot.target": false, "": false,
		"undefined": false, "kured-agent-check@dnf.service\n": false,
	} {
		if got := allowed.MatchString(unit); got != want {
			t.Errorf("starting %q: allowed=%t", unit, got)
		}
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
	for _, path := range append(slices.Clone(services), "systemd/kured-agent-pre-reboot.target", checkTemplate,
		"systemd/kured-reboot-required.path", "systemd/kured-reboot-required.target") {
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
