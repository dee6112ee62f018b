// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"strings"
	"testing"
)

// What these give was compared with `apt-config dump` of apt 2.6.1.
func TestSettingsOfAptAreReadAsAptDoes(t *testing.T) {
	t.Parallel()
	const name = "Unattended-Upgrade::Automatic-Reboot"
	for content, want := range map[string]string{
		name + ` "true";`:                       "true",
		name + ` true;`:                         "true",
		name + "\n\t\"true\"\n;":                "true",
		strings.ToLower(name) + ` "true";`:      "true",
		`"` + name + `" "true";`:                "true",
		name + ` "tr" "ue";`:                    "tr ue",
		name + `"true";`:                        "",
		name + ` tr"ue";`:                       "true",
		name + ` "true" { x "y"; };`:            "true",
		name + ` "tr;ue";`:                      "tr;ue",
		name + ` "/* true";`:                    "/* true",
		name + ` "true"; ` + name + ` "false";`: "false",
		name + `="true";`:                       "",
		name + `;`:                              "",
		name + `:: "true";`:                     "",
		name + ` "true"`:                        "",
		name + ` "";`:                           "",
		`Unattended-Upgrade { Automatic-Reboot "true"; };`:                  "true",
		`Unattended-Upgrade{Automatic-Reboot "true"}`:                       "true",
		"Unattended-Upgrade\n{\nAutomatic-Reboot\n\"true\";\n}":             "true",
		`Unattended-Upgrade "x" { Automatic-Reboot "true"; };`:              "true",
		`Unattended-Upgrade { O { "a"; "b"; }; Automatic-Reboot "true"; };`: "true",
		`Unattended-Upgrade { O { "a"; }; }; Automatic-Reboot "true";`:      "",
		`X { }; } ` + name + ` "true";`:                                     "true",
		`//` + name + ` "true";`:                                            "",
		`#` + name + ` "true";`:                                             "",
		`/* ` + name + ` "true"; */`:                                        "",
		"/* x\n*/ " + name + ` "true"; // "`:                                "true",
		"// \"unbalanced\n" + name + ` "true";`:                             "true",
		"# /*\n" + name + ` "true"; // */`:                                  "true",
		name + " // why\n \"true\";":                                        "true",
		name + ` "true"; #clear ` + name + ";":                              "",
		name + ` "true"; #clear unattended-upgrade;`:                        "",
		name + ` "true"; # clear Unattended-Upgrade;`:                       "true",
		name + ` "true"; #CLEAR Unattended-Upgrade;`:                        "true",
	} {
		got := aptLast([]file{{path: "/etc/apt/apt.conf", content: content}}, name)
		if got.value != want {
			t.Errorf("%q gives %q, want %q", content, got.value, want)
		}
	}
}

func TestTheLineOfASettingOfAptIsThatOfItsName(t *testing.T) {
	t.Parallel()
	s := aptLast([]file{{path: "p", content: "/*\n\n*/ A {\n  // c\n  B\n  \"true\";\n};\n"}}, "a::b")
	if s.line != 5 || s.path != "p" {
		t.Errorf("%+v", s)
	}
}

func TestABooleanOfAptIsReadAsAptDoes(t *testing.T) {
	t.Parallel()
	for _, yes := range []string{"1", "yes", "True", "with", "on", "ENABLE"} {
		if !aptTrue(yes) {
			t.Errorf("%q is false", yes)
		}
	}
	for _, no := range []string{"", "0", "2", "no", "false", "without", "off", "disable", "y", "wahr"} {
		if aptTrue(no) {
			t.Errorf("%q is true", no)
		}
	}
}

func FuzzAptSettings(f *testing.F) {
	for _, seed := range []string{`a::b "c"; d { e "f"; /* } */ g; } #clear a;`, `"`, "/*", "}{;", "a\xff//"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		lines := strings.Count(content, "\n") + 1
		aptSettings(content, func(key, _ string, line int) {
			if line < 1 || line > lines {
				t.Errorf("%q in line %d of %d", key, line, lines)
			}
		})
	})
}
