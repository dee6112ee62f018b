// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/kured-agent/kured-agent/internal/text"
)

// program is one row of what Find knows.
type program struct {
	name  string
	units []string // that run it
	needs string   // a path without which its units do nothing
	files [][]string
	// ignores says which of them the program itself passes over; nil: none.
	ignores func(path string) bool
	// reboots judges what was found; at is the setting that decides, if one does.
	reboots    func(facts) (by unit, at setting, ok bool)
	recognised string
	off        string // names where, which is replaced by the file that decides
	where      string
}

// facts are what was found of one program.
type facts struct {
	units []unit // active or enabled, at least one
	files []file // in the order in which the program reads them
}

type unit struct {
	name   string
	active bool // else only enabled
}

func (u unit) String() string {
	if u.active {
		return u.name + " is active"
	}
	return u.name + " is enabled"
}

type file struct{ path, content string }

const (
	bootcService = "/systemd/system/bootc-fetch-apply-updates.service"
	bootcDropIns = bootcService + ".d/*.conf"
)

var programs = []program{
	{
		name:       "locksmithd",
		units:      []string{"locksmithd.service"},
		files:      [][]string{{"/usr/share/flatcar/update.conf"}, {"/etc/flatcar/update.conf"}},
		reboots:    locksmith,
		recognised: "`locksmithd.service` active, or enabled without `REBOOT_STRATEGY=off` in `/etc/flatcar/update.conf`",
		off:        "systemctl mask --now locksmithd.service",
	}, {
		name:  "zincati",
		units: []string{"zincati.service"},
		files: [][]string{{
			"/usr/lib/zincati/config.d/*.toml", "/run/zincati/config.d/*.toml", "/etc/zincati/config.d/*.toml",
		}},
		reboots:    zincati,
		recognised: "`zincati.service` active or enabled, without `updates.enabled = false` in `zincati/config.d`",
		off:        "systemctl mask --now zincati.service",
	}, {
		name:       "rebootmgr",
		units:      []string{"rebootmgr.service"},
		files:      [][]string{{rebootmgrPolicy}, {"/etc/rebootmgr.conf"}},
		reboots:    rebootmgr,
		recognised: "`rebootmgr.service` active or enabled; before version 3 without `strategy=off` in `/etc/rebootmgr.conf`",
		off:        "systemctl mask --now rebootmgr.service",
	}, {
		name:    "unattended-upgrades",
		units:   []string{"apt-daily-upgrade.timer"},
		needs:   "/usr/bin/unattended-upgrade",
		files:   [][]string{{"/etc/apt/apt.conf.d/*"}, {"/etc/apt/apt.conf"}},
		ignores: aptIgnores,
		reboots: unattendedUpgrades,
		recognised: "`Unattended-Upgrade::Automatic-Reboot` true in the end, `APT::Periodic::Unattended-Upgrade` not 0, " +
			"and `apt-daily-upgrade.timer` active or enabled",
		off:   `echo 'Unattended-Upgrade::Automatic-Reboot "false";' >>/etc/apt/apt.conf.d/50unattended-upgrades`,
		where: "/etc/apt/apt.conf.d/50unattended-upgrades",
	}, {
		name:  "dnf-automatic",
		units: []string{"dnf-automatic-install.timer", "dnf5-automatic.timer", "dnf-automatic.timer"},
		files: [][]string{
			{"/usr/share/dnf5/dnf5-plugins/automatic.conf"},
			{"/etc/dnf/dnf5-plugins/automatic.conf"},
			{"/etc/dnf/automatic.conf"},
		},
		reboots: dnfAutomatic,
		recognised: "`reboot = when-changed` or `when-needed`, with `dnf-automatic-install.timer` active or enabled, or " +
			"`apply_updates = yes` and `dnf5-automatic.timer` or `dnf-automatic.timer`",
		off:   `sed -i 's/^[[:space:]]*reboot[[:space:]]*=.*/reboot = never/' /etc/dnf/automatic.conf`,
		where: "/etc/dnf/automatic.conf",
	}, {
		name:       "rpm-ostree",
		units:      []string{"rpm-ostreed-automatic.timer"},
		needs:      "/run/ostree-booted",
		files:      [][]string{{"/etc/rpm-ostreed.conf"}},
		reboots:    rpmOstree,
		recognised: "`AutomaticUpdatePolicy=apply`, with `rpm-ostreed-automatic.timer` active or enabled",
		off: `sed -i 's/^[[:space:]]*AutomaticUpdatePolicy[[:space:]]*=.*/AutomaticUpdatePolicy=stage/' ` +
			`/etc/rpm-ostreed.conf && rpm-ostree reload`,
	}, {
		name:  "bootc",
		units: []string{"bootc-fetch-apply-updates.timer"},
		needs: "/run/ostree-booted",
		files: [][]string{
			{"/usr/lib" + bootcService, "/run" + bootcService, "/etc" + bootcService},
			{"/usr/lib" + bootcDropIns, "/run" + bootcDropIns, "/etc" + bootcDropIns},
		},
		reboots: bootc,
		recognised: "`bootc-fetch-apply-updates.timer` active or enabled, and its service runs `bootc upgrade` with " +
			"`--apply`",
		off: "systemctl mask --now bootc-fetch-apply-updates.timer",
	}, {
		name:       "systemd-sysupdate",
		units:      []string{"systemd-sysupdate-reboot.timer"},
		reboots:    always,
		recognised: "`systemd-sysupdate-reboot.timer` active or enabled",
		off:        "systemctl mask --now systemd-sysupdate-reboot.timer",
	}, {
		name:  "transactional-update",
		units: []string{"transactional-update.timer"},
		files: [][]string{
			{"/usr/etc/transactional-update.conf"},
			{"/usr/etc/transactional-update.conf.d/*"},
			{"/etc/transactional-update.conf"},
		},
		reboots: transactionalUpdate,
		recognised: "`transactional-update.timer` active or enabled, and `REBOOT_METHOD` not `kured`, `notify`, `none` or " +
			"`rebootmgr` (then rebootmgr decides)",
		off: "echo REBOOT_METHOD=kured >>/etc/transactional-update.conf",
	}, {
		name:    "RAUC",
		units:   []string{"rauc.service"},
		files:   [][]string{{"/usr/lib/rauc/system.conf", "/run/rauc/system.conf", "/etc/rauc/system.conf"}},
		reboots: rauc,
		recognised: "`reboot-criteria` and `install-criteria` in `[polling]` of `rauc/system.conf`, with `rauc.service` " +
			"active or enabled",
		off: `sed -i '/^[[:space:]]*reboot-criteria[[:space:]]*=/d' /etc/rauc/system.conf && ` +
			`systemctl restart rauc.service`,
		where: "/etc/rauc/system.conf",
	},
}

// judge says whether the program reboots the host, as a Manager.
func (p program) judge(f facts) (Manager, bool) {
	by, at, ok := p.reboots(f)
	if !ok {
		return Manager{}, false
	}
	m := Manager{Name: p.name, Why: by.String(), Off: p.off}
	if at.path != "" {
		m.Why = fmt.Sprintf("%s:%d sets %s, and %s", at.path, at.line, at, by)
	}
	if at.path != "" && p.where != "" {
		m.Off = strings.Replace(p.off, p.where, at.path, 1)
	}
	return m, true
}

func always(f facts) (unit, setting, bool) { return f.units[0], setting{}, true }

// locksmith: with the strategy "off" the daemon ends at once, so one that runs was started with another.
func locksmith(f facts) (unit, setting, bool) {
	by := f.units[0]
	strategy, _ := last(f.files, "", "REBOOT_STRATEGY")
	return by, setting{}, by.active || strategy.value != "off"
}

// zincati reads its files at its start only; who has just switched its updates off restarts it.
func zincati(f facts) (unit, setting, bool) {
	enabled := true
	for _, file := range f.files {
		var config struct {
			Updates struct{ Enabled *bool }
		}
		// With a file that can't be read zincati does not start, but one that runs goes on.
		if _, err := toml.Decode(file.content, &config); err == nil && config.Updates.Enabled != nil {
			enabled = *config.Updates.Enabled
		}
	}
	return f.units[0], setting{}, enabled
}

// rebootmgrPolicy is there in the versions with a D-Bus interface, up to 2.6.
const rebootmgrPolicy = "/usr/share/dbus-1/system.d/org.opensuse.RebootMgr.conf"

// rebootmgr: since version 3 "off" lasts until the next start only, and a file that says so is passed over.
func rebootmgr(f facts) (unit, setting, bool) {
	old := slices.ContainsFunc(f.files, func(f file) bool { return f.path == rebootmgrPolicy })
	strategy, _ := last(f.files, "rebootmgr", "strategy")
	return f.units[0], setting{}, !old || !strings.EqualFold(strategy.value, "off")
}

func unattendedUpgrades(f facts) (unit, setting, bool) {
	reboot := aptLast(f.files, "Unattended-Upgrade::Automatic-Reboot")
	periodic := aptLast(f.files, "APT::Periodic::Unattended-Upgrade")
	enable := aptLast(f.files, "APT::Periodic::Enable")
	runs := periodic.value != "" && periodic.value != "0" && enable.value != "0"
	return f.units[0], reboot, runs && aptTrue(reboot.value)
}

func dnfAutomatic(f facts) (unit, setting, bool) {
	reboot, _ := last(f.files, "commands", "reboot")
	apply, _ := last(f.files, "commands", "apply_updates")
	applies := slices.Contains([]string{"1", "yes", "true", "on", "enabled"}, strings.ToLower(apply.value))
	for _, u := range f.units {
		// The install timer applies updates whatever the file says.
		if applies || u.name == "dnf-automatic-install.timer" {
			return u, reboot, reboot.value == "when-changed" || reboot.value == "when-needed"
		}
	}
	return unit{}, setting{}, false
}

func rpmOstree(f facts) (unit, setting, bool) {
	policy, _ := last(f.files, "Daemon", "AutomaticUpdatePolicy")
	return f.units[0], policy, strings.EqualFold(policy.value, "apply")
}

// bootc: people keep the timer and take the reboot out of its service, with a drop-in.
func bootc(f facts) (unit, setting, bool) {
	command, ok := last(f.files, "Service", "ExecStart")
	return f.units[0], setting{}, !ok || slices.Contains(strings.Fields(command.value), "--apply")
}

// transactionalUpdate: an unknown method, and none at all, mean "auto".
func transactionalUpdate(f facts) (unit, setting, bool) {
	method, _ := last(f.files, "", "REBOOT_METHOD")
	return f.units[0], method, !slices.Contains([]string{"kured", "notify", "none", "rebootmgr"}, method.value)
}

func rauc(f facts) (unit, setting, bool) {
	install, _ := last(f.files, "polling", "install-criteria")
	reboot, _ := last(f.files, "polling", "reboot-criteria")
	return f.units[0], reboot, strings.Trim(install.value, "; ") != "" && strings.Trim(reboot.value, "; ") != ""
}

// setting is one assignment in a file.
type setting struct {
	path       string
	line       int
	key, value string
	apt        bool // written as apt does
}

func (s setting) String() string {
	value := text.Line(s.value, 80)
	if s.apt {
		return fmt.Sprintf("%s %q", s.key, value)
	}
	return s.key + "=" + value
}

// last is the last assignment of a key in a section of files written as key=value lines; "" is the part before any
// section.
func last(files []file, section, key string) (s setting, ok bool) {
	for _, f := range files {
		in, number := "", 0
		for line := range strings.Lines(f.content) {
			number++
			line = strings.TrimSpace(line)
			if name, header := strings.CutPrefix(line, "["); header {
				in = strings.TrimSuffix(name, "]")
				continue
			}
			k, v, assigns := strings.Cut(line, "=")
			k = strings.TrimSpace(strings.TrimPrefix(k, "export "))
			if assigns && in == section && k == key {
				s, ok = setting{path: f.path, line: number, key: key, value: plain(v)}, true
			}
		}
	}
	return s, ok
}

// plain is a value without its quotes and a comment behind it.
func plain(value string) string {
	value, _, _ = strings.Cut(value, " #")
	value = strings.TrimSpace(value)
	if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
		value = value[1 : len(value)-1]
	}
	return value
}
