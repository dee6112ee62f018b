// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kured-agent/kured-agent/internal/bus"
	"github.com/kured-agent/kured-agent/internal/bus/bustest"
	"github.com/kured-agent/kured-agent/internal/units"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// fakeUnits are ActiveState and UnitFileState by name, e.g. "active enabled".
type fakeUnits map[string]string

func (f fakeUnits) Installed(_ context.Context, names []string) (active, file map[string]string, err error) {
	active, file = map[string]string{}, map[string]string{}
	for _, name := range names {
		if state, ok := f[name]; ok {
			active[name], file[name], _ = strings.Cut(state, " ")
		}
	}
	return active, file, nil
}

const (
	upgrades = "/etc/apt/apt.conf.d/50unattended-upgrades"
	periodic = "/etc/apt/apt.conf.d/20auto-upgrades"
	bootcBin = "/usr/lib/systemd/system/bootc-fetch-apply-updates.service"
)

// on is one unit that runs.
func on(name string) fakeUnits { return fakeUnits{name: "active enabled"} }

var (
	aptTimer = on("apt-daily-upgrade.timer")
	aptFiles = map[string]string{
		"/usr/bin/unattended-upgrade": "", periodic: `APT::Periodic::Unattended-Upgrade "1";`,
	}
)

func with(base map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, base)
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

// cases are hosts; why is that of the only program that reboots them, "" for none.
var cases = []struct {
	name  string
	units fakeUnits
	files map[string]string
	by    string
	why   string
}{
	{name: "a plain host"},
	{
		name: "units that are there and off",
		units: fakeUnits{
			"locksmithd.service":             "inactive masked",
			"zincati.service":                "inactive disabled",
			"rebootmgr.service":              "failed disabled",
			"systemd-sysupdate-reboot.timer": "inactive disabled", "rauc.service": "inactive static",
		},
	},

	{
		name: "locksmithd runs", units: on("locksmithd.service"),
		by: "locksmithd", why: "locksmithd.service is active",
	}, {
		name:  "locksmithd is masked and still runs (flatcar/flatcar-linux-update-operator#201)",
		units: fakeUnits{"locksmithd.service": "active masked"}, by: "locksmithd", why: "locksmithd.service is active",
	}, {
		name: "locksmithd comes with the next boot", units: fakeUnits{"locksmithd.service": "inactive enabled"},
		by: "locksmithd", why: "locksmithd.service is enabled",
	}, {
		name: "locksmithd ended because its strategy is off", units: fakeUnits{"locksmithd.service": "inactive enabled"},
		files: map[string]string{
			"/usr/share/flatcar/update.conf": "REBOOT_STRATEGY=reboot\n",
			"/etc/flatcar/update.conf":       "GROUP=stable\nREBOOT_STRATEGY=\"off\"\n",
		},
	}, {
		name: "locksmithd was started before its strategy was turned off", units: on("locksmithd.service"),
		files: map[string]string{"/etc/flatcar/update.conf": "REBOOT_STRATEGY=off\n"},
		by:    "locksmithd", why: "locksmithd.service is active",
	},

	{
		name: "zincati starts", units: fakeUnits{"zincati.service": "activating enabled"},
		by: "zincati", why: "zincati.service is active",
	}, {
		name: "zincati idles, its updates are off", units: on("zincati.service"),
		files: map[string]string{
			"/usr/lib/zincati/config.d/10-auto-updates.toml": "[updates]\nenabled = true\n",
			"/etc/zincati/config.d/90-off.toml":              "[updates]\nenabled = false\n",
		},
	}, {
		name: "zincati's updates are off by a file of the same name", units: on("zincati.service"),
		files: map[string]string{
			"/usr/lib/zincati/config.d/10-auto-updates.toml": "[updates]\nenabled = true\n",
			"/etc/zincati/config.d/10-auto-updates.toml":     "updates.enabled = false\n",
		},
	}, {
		name: "zincati's last file wins, whatever the directory", units: on("zincati.service"),
		files: map[string]string{
			"/etc/zincati/config.d/50-off.toml":    "[updates]\nenabled = false\n",
			"/etc/zincati/config.d/60-broken.toml": "[updates\nenabled = false\n",
			"/etc/zincati/config.d/.70-off.toml":   "[updates]\nenabled = false\n",
			"/etc/zincati/config.d/80-off.tml":     "[updates]\nenabled = false\n",
			"/run/zincati/config.d/90-on.toml":     "[updates]\nenabled = true\n",
		},
		by: "zincati", why: "zincati.service is active",
	},

	{
		name: "rebootmgr 2.6 is off", units: on("rebootmgr.service"),
		files: map[string]string{rebootmgrPolicy: "<busconfig/>", "/etc/rebootmgr.conf": "[rebootmgr]\nstrategy=off\n"},
	}, {
		name: "rebootmgr 2.6 does its best", units: on("rebootmgr.service"),
		files: map[string]string{
			rebootmgrPolicy:       "<busconfig/>",
			"/etc/rebootmgr.conf": "[rebootmgr]\nstrategy=best-effort\n",
		},
		by: "rebootmgr", why: "rebootmgr.service is active",
	}, {
		name: "rebootmgr 3 with a file that version 2 left", units: on("rebootmgr.service"),
		files: map[string]string{"/etc/rebootmgr.conf": "[rebootmgr]\nstrategy=off\n"},
		by:    "rebootmgr", why: "rebootmgr.service is active",
	},

	{
		name: "unattended-upgrades as installed", units: aptTimer,
		files: with(aptFiles, upgrades, `//Unattended-Upgrade::Automatic-Reboot "false";`),
	}, {
		name: "unattended-upgrades reboots", units: aptTimer,
		files: with(aptFiles, upgrades, "// comment\n\nUnattended-Upgrade::Automatic-Reboot \"true\";\n"),
		by:    "unattended-upgrades",
		why:   upgrades + `:3 sets Unattended-Upgrade::Automatic-Reboot "true", and apt-daily-upgrade.timer is active`,
	}, {
		name: "a later file has the last word", units: aptTimer,
		files: with(aptFiles, upgrades, `Unattended-Upgrade::Automatic-Reboot "true";`,
			"/etc/apt/apt.conf.d/60local", `Unattended-Upgrade { Automatic-Reboot "no"; };`),
	}, {
		name: "the main file comes last of all", units: aptTimer,
		files: with(aptFiles, "/etc/apt/apt.conf.d/zz", `Unattended-Upgrade::Automatic-Reboot "0";`,
			"/etc/apt/apt.conf", `unattended-upgrade::automatic-reboot 1;`),
		by:  "unattended-upgrades",
		why: `/etc/apt/apt.conf:1 sets Unattended-Upgrade::Automatic-Reboot "1", and apt-daily-upgrade.timer is active`,
	}, {
		name: "files that apt ignores", units: aptTimer,
		files: with(aptFiles, upgrades+".dpkg-old", `Unattended-Upgrade::Automatic-Reboot "true";`,
			upgrades+"~", strings.Repeat("x", maxFile+1)),
	}, {
		name: "the timer of apt is off", units: fakeUnits{"apt-daily-upgrade.timer": "inactive masked"},
		files: with(aptFiles, upgrades, `Unattended-Upgrade::Automatic-Reboot "true";`),
	}, {
		name: "apt does not run unattended-upgrades", units: aptTimer,
		files: with(aptFiles, upgrades, `Unattended-Upgrade::Automatic-Reboot "true";`,
			periodic, `APT::Periodic::Unattended-Upgrade "0";`),
	}, {
		name: "apt does nothing by itself", units: aptTimer,
		files: with(aptFiles, upgrades, `Unattended-Upgrade::Automatic-Reboot "true"; APT::Periodic::Enable "0";`),
	}, {
		name: "unattended-upgrades was removed and left its files", units: aptTimer,
		files: map[string]string{
			upgrades: `Unattended-Upgrade::Automatic-Reboot "true";`, periodic: `APT::Periodic::Unattended-Upgrade "1";`,
		},
	},

	{
		name: "dnf-automatic downloads only", units: on("dnf-automatic.timer"),
		files: map[string]string{"/etc/dnf/automatic.conf": "[commands]\napply_updates = no\nreboot = when-needed\n"},
	}, {
		name: "dnf-automatic installs and reboots", units: on("dnf-automatic.timer"),
		files: map[string]string{
			"/etc/dnf/automatic.conf": "[commands]\napply_updates = yes\nreboot = when-needed\n[emitters]\n",
		},
		by:  "dnf-automatic",
		why: "/etc/dnf/automatic.conf:3 sets reboot=when-needed, and dnf-automatic.timer is active",
	}, {
		name: "the install timer of dnf-automatic installs in any case", units: on("dnf-automatic-install.timer"),
		files: map[string]string{"/etc/dnf/automatic.conf": "[commands]\napply_updates = no\nreboot=when-changed\n"},
		by:    "dnf-automatic",
		why:   "/etc/dnf/automatic.conf:3 sets reboot=when-changed, and dnf-automatic-install.timer is active",
	}, {
		name: "dnf-automatic installs and does not reboot", units: on("dnf-automatic-install.timer"),
		files: map[string]string{
			"/etc/dnf/automatic.conf": "[commands]\nreboot = never\n#reboot = when-needed\n[x]\nreboot = when-needed\n",
		},
	}, {
		name:  "dnf5 takes from two files",
		units: fakeUnits{"dnf5-automatic.timer": "active enabled", "dnf-automatic.timer": "active enabled"},
		files: map[string]string{
			"/usr/share/dnf5/dnf5-plugins/automatic.conf": "[commands]\napply_updates = no\nreboot = never\n",
			"/etc/dnf/dnf5-plugins/automatic.conf":        "[commands]\nreboot = when-needed\n",
			"/etc/dnf/automatic.conf":                     "[commands]\napply_updates = True\n",
		},
		by:  "dnf-automatic",
		why: "/etc/dnf/dnf5-plugins/automatic.conf:2 sets reboot=when-needed, and dnf5-automatic.timer is active",
	},

	{
		name: "rpm-ostree applies", units: on("rpm-ostreed-automatic.timer"),
		files: map[string]string{
			"/run/ostree-booted":    "",
			"/etc/rpm-ostreed.conf": "[Daemon]\n#AutomaticUpdatePolicy=none\nAutomaticUpdatePolicy=Apply\n",
		},
		by:  "rpm-ostree",
		why: "/etc/rpm-ostreed.conf:3 sets AutomaticUpdatePolicy=Apply, and rpm-ostreed-automatic.timer is active",
	}, {
		name: "rpm-ostree stages", units: on("rpm-ostreed-automatic.timer"),
		files: map[string]string{
			"/run/ostree-booted":    "",
			"/etc/rpm-ostreed.conf": "[Daemon]\nAutomaticUpdatePolicy=stage\n",
		},
	},

	{
		name: "bootc as installed", units: on("bootc-fetch-apply-updates.timer"),
		files: map[string]string{
			"/run/ostree-booted": "",
			bootcBin:             "[Service]\nExecStart=/usr/bin/bootc upgrade --apply --quiet\n",
		},
		by: "bootc", why: "bootc-fetch-apply-updates.timer is active",
	}, {
		name: "bootc's service was told not to apply", units: on("bootc-fetch-apply-updates.timer"),
		files: map[string]string{
			"/run/ostree-booted": "", bootcBin: "[Service]\nExecStart=/usr/bin/bootc upgrade --apply --quiet\n",
			"/etc/systemd/system/bootc-fetch-apply-updates.service.d/stage.conf": "[Service]\n" +
				"ExecStart=\nExecStart=/usr/bin/bootc upgrade\n",
		},
	}, {
		name:  "bootc on a host that is not of its kind",
		units: fakeUnits{"bootc-fetch-apply-updates.timer": "inactive enabled"},
		files: map[string]string{bootcBin: "[Service]\nExecStart=/usr/bin/bootc upgrade --apply --quiet\n"},
	},

	{
		name: "systemd-sysupdate", units: fakeUnits{"systemd-sysupdate-reboot.timer": "inactive enabled-runtime"},
		by: "systemd-sysupdate", why: "systemd-sysupdate-reboot.timer is enabled",
	},

	{
		name: "transactional-update as installed", units: on("transactional-update.timer"),
		files: map[string]string{"/usr/etc/transactional-update.conf": "#REBOOT_METHOD=auto\n"},
		by:    "transactional-update", why: "transactional-update.timer is active",
	}, {
		name: "transactional-update asks systemd", units: on("transactional-update.timer"),
		files: map[string]string{"/etc/transactional-update.conf": "REBOOT_METHOD='systemd' # at once\n"},
		by:    "transactional-update",
		why:   "/etc/transactional-update.conf:1 sets REBOOT_METHOD=systemd, and transactional-update.timer is active",
	}, {
		name: "transactional-update's packaged files come first", units: on("transactional-update.timer"),
		files: map[string]string{
			"/usr/etc/transactional-update.conf":      "REBOOT_METHOD=none\n",
			"/usr/etc/transactional-update.conf.d/50": "export REBOOT_METHOD=kexec\n",
			"/etc/transactional-update.conf":          "REBOOT_METHOD=kured\n",
		},
	}, {
		name: "transactional-update leaves it to a rebootmgr that is off", units: fakeUnits{
			"transactional-update.timer": "active enabled", "rebootmgr.service": "inactive masked",
		},
		files: map[string]string{"/etc/transactional-update.conf": "REBOOT_METHOD=rebootmgr\n"},
	},

	{
		name: "RAUC polls, installs and reboots", units: fakeUnits{"rauc.service": "active static"},
		files: map[string]string{
			"/etc/rauc/system.conf": "[polling]\nurl=https://example\ninstall-criteria=always\n" +
				"reboot-criteria=updated-slots;updated-artifacts\n",
		},
		by:  "RAUC",
		why: "/etc/rauc/system.conf:4 sets reboot-criteria=updated-slots;updated-artifacts, and rauc.service is active",
	}, {
		name: "RAUC polls and installs", units: fakeUnits{"rauc.service": "active static"},
		files: map[string]string{
			"/etc/rauc/system.conf": "[polling]\nurl=https://example\ninstall-criteria=always\nreboot-criteria=\n",
		},
	}, {
		name: "RAUC's file in /etc hides the packaged one", units: fakeUnits{"rauc.service": "active static"},
		files: map[string]string{
			"/usr/lib/rauc/system.conf": "[polling]\ninstall-criteria=always\nreboot-criteria=updated-slots\n",
			"/etc/rauc/system.conf":     "[system]\n",
		},
	},
}

func TestWhatRebootsAHostIsFoundAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			found, err := Find(t.Context(), tree(t, test.files), test.units)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case test.by == "" && found == nil:
			case len(found) != 1 || found[0].Name != test.by || found[0].Why != test.why:
				t.Errorf("found %q, want %q by %q", found, test.why, test.by)
			}
		})
	}
}

func TestTheCommandThatIsNamedTurnsTheProgramOff(t *testing.T) {
	t.Parallel()
	covered := map[string]bool{}
	for _, test := range cases {
		if test.by == "" {
			continue
		}
		covered[test.by] = true
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			root := tree(t, test.files)
			found, err := Find(t.Context(), root, test.units)
			if err != nil || len(found) != 1 {
				t.Fatalf("found %q, %v", found, err)
			}
			test.units = obey(t, root, found[0].Off, test.units)
			if found, err = Find(t.Context(), root, test.units); err != nil || found != nil {
				t.Errorf("found %q afterwards, %v", found, err)
			}
		})
	}
	for _, p := range programs {
		if !covered[p.name] {
			t.Errorf("no case shows %s", p.name)
		}
	}
}

// obey does in the tree what the command says, and to the units what systemctl would do to them.
func obey(t *testing.T, root, command string, before fakeUnits) fakeUnits {
	t.Helper()
	after := fakeUnits(with(before))
	edit, reload, _ := strings.Cut(command, " && ")
	if unit, ok := strings.CutPrefix(edit, "systemctl mask --now "); ok {
		after[unit] = "inactive masked"
		return after
	}
	if reload != "" && reload != "rpm-ostree reload" && reload != "systemctl restart rauc.service" {
		t.Errorf("what is %q?", reload)
	}
	for _, dir := range []string{"/etc/", "/usr/"} {
		edit = strings.ReplaceAll(edit, dir, root+dir)
	}
	if err := os.MkdirAll(filepath.Join(root, "/etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c", edit).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", edit, err, out)
	}
	return after
}

func TestWhatCantBeReadIsUnknownAndHidesNothingElse(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"/etc/rauc/system.conf": strings.Repeat("#", maxFile+1), "/etc/zincati": "not a directory",
	})
	if err := os.MkdirAll(filepath.Join(root, "/etc/dnf"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("automatic.conf", filepath.Join(root, "/etc/dnf/automatic.conf")); err != nil {
		t.Fatal(err)
	}
	found, err := Find(t.Context(), root, fakeUnits{
		"rauc.service": "active static", "dnf-automatic.timer": "active enabled", "zincati.service": "active enabled",
		"systemd-sysupdate-reboot.timer": "active enabled",
	})
	names := make([]string, 0, len(found))
	for _, m := range found {
		names = append(names, m.Name)
	}
	if !slices.Equal(names, []string{"zincati", "systemd-sysupdate"}) {
		t.Errorf("found %q", names)
	}
	if !errors.Is(err, syscall.ELOOP) || !strings.Contains(err.Error(), "looking for RAUC: ") ||
		!strings.Contains(err.Error(), "looking for dnf-automatic: ") {
		t.Errorf("error %v", err)
	}
}

func TestAHeapOfFilesIsUnknown(t *testing.T) {
	t.Parallel()
	root := tree(t, aptFiles)
	for i := range maxFiles + 1 {
		name := filepath.Join(root, "/etc/apt/apt.conf.d", strings.Repeat("x", i+1))
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := Find(t.Context(), root, aptTimer); err == nil || found != nil {
		t.Errorf("found %q, %v", found, err)
	}
}

func TestUnitsAreAskedOfSystemdAndOneFailureEndsTheLook(t *testing.T) {
	t.Parallel()
	d := bustest.Start(t)
	systemd := bustest.NewSystemd1(d)
	systemd.SetUnit("zincati.service", bustest.FakeUnit{Active: "active", File: "enabled"})
	systemd.SetUnit("locksmithd.service", bustest.FakeUnit{Load: "masked", Active: "inactive", File: "masked"})
	systemd.SetUnit("systemd-sysupdate-reboot.timer", bustest.FakeUnit{Active: "inactive", File: "enabled"})
	b := bus.New(bus.Options{Address: d.Address})
	bustest.Connect(t, b)
	c := units.New(b)
	found, err := Find(t.Context(), t.TempDir(), c)
	if err != nil || len(found) != 2 || found[0].Name != "zincati" || found[1].Name != "systemd-sysupdate" {
		t.Errorf("found %q, %v", found, err)
	}
	systemd.Disconnect()
	found, err = Find(t.Context(), t.TempDir(), c)
	if found != nil || err == nil || !strings.Contains(err.Error(), "asking systemd") {
		t.Errorf("without systemd found %q, %v", found, err)
	}
}

func TestTheTableHasEveryProgramOnce(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, row := range Table() {
		if row.Recognised == "" || row.Off == "" || seen[row.Program] || strings.ContainsAny(row.Recognised+row.Off, "|\n") {
			t.Errorf("row %+v", row)
		}
		seen[row.Program] = true
	}
	for _, p := range programs {
		if p.where != "" && !strings.Contains(p.off, p.where) {
			t.Errorf("%s: %q does not name %q", p.name, p.off, p.where)
		}
	}
}
