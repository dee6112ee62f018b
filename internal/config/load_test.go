// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/kured-agent/kured-agent/internal/signal"
	"github.com/kured-agent/kured-agent/internal/window"
)

var update = flag.Bool("update", false, "write the golden files anew")

// stub has the types and keys of the real sources, so that a new one needs no edit here, and simple checks of its own.
var stub = Options{
	SourceTypes: signal.Types,
	CheckSource: func(typ string, options map[string]any) []SourceProblem {
		var problems []SourceProblem
		for key := range options {
			if !slices.Contains(signal.Keys(typ), key) {
				problems = append(problems, SourceProblem{key, "unknown key"})
			}
		}
		if _, ok := options["path"]; typ == "file" && !ok {
			problems = append(problems, SourceProblem{"", "needs a path"})
		}
		return problems
	},
}

// write makes a configuration directory from "name", "text" pairs and returns the path of its config.toml.
func write(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		file := filepath.Join(dir, files[i])
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(files[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "config.toml")
}

func load(t *testing.T, files ...string) *Config {
	t.Helper()
	c, err := Load(write(t, files...), stub)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEveryProblemIsToldWithItsFileLineAndKey compares what Load says with testdata/*.txtar. Each archive holds the
// files of a configuration directory and, as "want", the error. "chmod MODE FILE" in its comment sets a mode.
func TestEveryProblemIsToldWithItsFileLineAndKey(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal(archives, err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			golden, err := filepath.Abs(name)
			if err != nil {
				t.Fatal(err)
			}
			var files []string
			want := -1
			for i, file := range archive.Files {
				if file.Name == "want" {
					want = i
					continue
				}
				files = append(files, file.Name, string(file.Data))
			}
			if want < 0 {
				t.Fatal(`no file "want"`)
			}
			t.Chdir(filepath.Dir(write(t, files...)))
			for line := range strings.Lines(string(archive.Comment)) {
				var mode fs.FileMode
				var file string
				if n, _ := fmt.Sscanf(line, "chmod %o %s", &mode, &file); n == 2 {
					if err := os.Chmod(file, mode); err != nil {
						t.Fatal(err)
					}
				}
			}

			_, err = Load("config.toml", stub)
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("error is %v", err)
			}
			got := []byte(err.Error() + "\n")
			if *update {
				archive.Files[want].Data = got
				if err := os.WriteFile(golden, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, archive.Files[want].Data) {
				t.Errorf("got:\n%s\nwant:\n%s\nif that is what you meant: go test ./internal/config -update, and read the "+
					"difference (a new type of source adds itself to the lists of types)", got, archive.Files[want].Data)
			}
		})
	}
}

func TestAnEmptyFileMeansTheDefaults(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty": "", "comment": "# nothing\n", "empty tables": "[node]\n[drain]\n[gate]\n",
		"empty lists": "source = []\nwindow = []\n",
	} {
		if diff := cmp.Diff(Default(), load(t, "config.toml", text)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// everything gives each key a value that is not its default.
const everything = `
[node]
name = "worker-1.example"

[cluster]
kubeconfig = "/root/kubeconfig"

[[source]]
type = "file"
path = "/run/a"

[[source]]
type = "dbus-signal"
argument = 2
equals = true

[taint]
key = "example.com/reboot"
effect = "NoSchedule"
when = "window"

[[window]]
days = ["Mon", "saturday"]
start = "22:00"
end = "05:00"
timezone = "Europe/Berlin"

[[window]]
start = "00:00"
end = "24:00"

[slot]
pool = "gpu"
max_hold = "1h30m"

[drain]
enabled = false
identity = "kubelet"
timeout = "1h"
grace_period = "90s"
skip = "app in (a, b),!c"
unmanaged_pods = "evict"
after_timeout = "delete"

[[gate.prometheus]]
url = "https://prometheus.example:9090"
query = 'up == 0'
ca_file = "/etc/ca.pem"
token_file = "/etc/token"

[[gate.prometheus]]
url = "http://[::1]:9090"
query = "ALERTS"

[[gate.pods]]
selector = "app=backup"

[reboot]
method = "auto"
min_interval = "0s"
loop_guard = "48h"
refuse_beside = false

[boot]
settle = "0s"
deadline = "20m"
ready_pods = ["app=cni", "app=csi"]
remove_taints = ["example.com/fresh", "startup:NoExecute"]

[metrics]
listen = "unix:/run/metrics.sock"
textfile = "/var/lib/node_exporter"

[notify]
urls = ["https://hooks.example/abc"]
`

func TestEveryKeyIsRead(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Node:    Node{Name: "worker-1.example"},
		Cluster: Cluster{Kubeconfig: "/root/kubeconfig"},
		Sources: []Source{
			{Type: "file", Options: map[string]any{"path": "/run/a"}},
			{Type: "dbus-signal", Options: map[string]any{"argument": int64(2), "equals": true}},
		},
		Taint: Taint{Key: "example.com/reboot", Effect: "NoSchedule", When: WhenWindow},
		Windows: []window.Window{
			{Days: [7]bool{time.Monday: true, time.Saturday: true}, Start: 22 * 60, End: 5 * 60, Location: berlin},
			{Days: [7]bool{true, true, true, true, true, true, true}, Start: 0, End: 24 * 60, Location: time.Local},
		},
		Slot: Slot{Pool: "gpu", MaxHold: 90 * time.Minute},
		Drain: Drain{
			Enabled: false, Identity: IdentityKubelet, Timeout: time.Hour, GracePeriod: 90 * time.Second,
			Skip: "app in (a, b),!c", UnmanagedPods: UnmanagedEvict, AfterTimeout: AfterDelete,
		},
		Gate: Gate{
			Prometheus: []Prometheus{
				{URL: "https://prometheus.example:9090", Query: "up == 0", CAFile: "/etc/ca.pem", TokenFile: "/etc/token"},
				{URL: "http://[::1]:9090", Query: "ALERTS"},
			},
			Pods: []string{"app=backup"},
		},
		Reboot: Reboot{Method: MethodAuto, MinInterval: 0, LoopGuard: 48 * time.Hour},
		Boot: Boot{
			Settle: 0, Deadline: 20 * time.Minute, ReadyPods: []string{"app=cni", "app=csi"},
			RemoveTaints: []string{"example.com/fresh", "startup:NoExecute"},
		},
		Metrics: Metrics{Listen: "unix:/run/metrics.sock", Textfile: "/var/lib/node_exporter"},
		Notify:  Notify{URLs: []string{"https://hooks.example/abc"}},
	}
	if got := load(t, "config.toml", everything); !reflect.DeepEqual(got, want) {
		t.Error(cmp.Diff(want, got, cmp.Comparer(func(a, b *time.Location) bool { return a.String() == b.String() })))
	}
}

func TestADropInReplacesWholeTables(t *testing.T) {
	t.Parallel()
	const empty = ""
	for name, test := range map[string]struct {
		files []string
		want  func(*Config)
	}{
		"a table is read over its defaults, not over the main file": {
			[]string{"config.toml", "[drain]\ntimeout = '5m'\nskip = 'a=b'\n[slot]\npool = 'x'\n",
				"config.d/a.toml", "[drain]\ntimeout = '6m'\n"},
			func(c *Config) { c.Drain.Timeout, c.Slot.Pool = 6*time.Minute, "x" },
		},
		"an array is replaced as a whole": {
			[]string{"config.toml", "[[source]]\ntype = 'request'\n[[source]]\ntype = 'update-engine'\n",
				"config.d/a.toml", "[[source]]\ntype = 'file'\npath = '/a'\n"},
			func(c *Config) { c.Sources = []Source{{"file", map[string]any{"path": "/a"}}} },
		},
		"an empty array is back to the default": {
			[]string{"config.toml", "[[window]]\nstart = '01:00'\nend = '02:00'\n", "config.d/a.toml", "window = []\n"},
			func(*Config) {},
		},
		"gate is one table": {
			[]string{"config.toml", "[[gate.prometheus]]\nurl = 'http://a'\nquery = 'b'\n",
				"config.d/a.toml", "[[gate.pods]]\nselector = 'a'\n"},
			func(c *Config) { c.Gate.Pods = []string{"a"} },
		},
		"the last name wins": {
			[]string{"config.toml", empty, "config.d/10.toml", "slot.pool = 'ten'", "config.d/9.toml", "slot.pool = 'nine'"},
			func(c *Config) { c.Slot.Pool = "nine" },
		},
		"other files are left alone": {
			[]string{"config.toml", empty, "config.d/a.toml.dpkg-new", "x", "config.d/.a.toml", "x", "config.d/README", "x"},
			func(*Config) {},
		},
		"drain and slot are compared after merging": {
			[]string{"config.toml", "[drain]\ntimeout = '2h'\n", "config.d/a.toml", "[slot]\nmax_hold = '3h'\n"},
			func(c *Config) { c.Drain.Timeout, c.Slot.MaxHold = 2*time.Hour, 3*time.Hour },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := Default()
			test.want(want)
			if diff := cmp.Diff(want, load(t, test.files...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFilesAreListedInTheirOrder(t *testing.T) {
	t.Parallel()
	main := write(t, "config.toml", "", "config.d/b.toml", "", "config.d/a.toml", "")
	got, err := Files(main)
	dir := filepath.Join(filepath.Dir(main), "config.d")
	want := []string{main, filepath.Join(dir, "a.toml"), filepath.Join(dir, "b.toml")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestAMissingFileIsNamed(t *testing.T) {
	t.Parallel()
	main := filepath.Join(t.TempDir(), "config.toml")
	if _, err := Load(main, stub); err == nil || !strings.HasPrefix(err.Error(), main+": does not exist") {
		t.Errorf("error is %v", err)
	}
}

func TestWithoutHooksAnySourceIsTaken(t *testing.T) {
	t.Parallel()
	c, err := Load(write(t, "config.toml", "[[source]]\ntype = 'anything'\nkey = 1\n"), Options{})
	if err != nil || len(c.Sources) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

// owned is the little of a file that checkOwner looks at.
type owned struct {
	fs.FileInfo
	mode fs.FileMode
	uid  uint32
}

func (o owned) Mode() fs.FileMode { return o.mode }
func (o owned) Sys() any          { return &syscall.Stat_t{Uid: o.uid} }

func TestOnlyRootAndOurselvesMayWriteTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		file owned
		want string
	}{
		{owned{mode: 0o644, uid: 0}, ""},
		{owned{mode: 0o600, uid: 990}, ""},
		{owned{mode: fs.ModeDir | 0o755, uid: 0}, ""},
		{owned{mode: 0o644, uid: 1000}, "belongs to user 1000: run chown root"},
		{owned{mode: 0o664, uid: 0}, "can be written by others than its owner (mode 0664): run chmod go-w"},
		{owned{mode: 0o602, uid: 990}, "can be written by others than its owner (mode 0602): run chmod go-w"},
	} {
		got := ""
		if err := checkOwner(test.file, 990); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("mode %o, user %d: %q, want %q", test.file.mode, test.file.uid, got, test.want)
		}
	}
}

func TestAPipeOrADirectoryIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	main := filepath.Join(dir, "config.toml")
	if err := syscall.Mkfifo(main, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(main, stub); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("fifo: error is %v", err)
	}
	if err := os.Remove(main); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(main, main); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(main, stub); err == nil || !strings.Contains(err.Error(), "symbolic links") {
		t.Errorf("link to itself: error is %v", err)
	}
}

func TestAFileLargerThanOneMebibyteIsRefused(t *testing.T) {
	t.Parallel()
	line := "# " + strings.Repeat("x", 61) + "\n"
	full := strings.Repeat(line, maxSize/len(line))
	load(t, "config.toml", full)
	_, err := Load(write(t, "config.toml", full+"\n"), stub)
	if err == nil || !strings.Contains(err.Error(), "is larger than 1024 KiB") {
		t.Errorf("error is %v", err)
	}
}

func TestAnArrayOfTablesHasABound(t *testing.T) {
	t.Parallel()
	pods := strings.Repeat("[[gate.pods]]\nselector = 'a'\n", maxTables)
	load(t, "config.toml", pods)
	_, err := Load(write(t, "config.toml", strings.Repeat(pods, 2)), stub)
	if err == nil || !strings.HasSuffix(err.Error(), "config.toml:65: gate.pods: is one too many: the most is 32") {
		t.Errorf("error is %v", err)
	}
}

func TestAProblemStaysOnItsLine(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	_, err := Load(write(t,
		"config.toml", "[node]\n\"a\\nb\\u001b[31m\" = 1\nname = \"\\u001b\\n\"\n[slot]\n"+
			"pool = \""+long+"\"\n[drain]\nskip = \""+long+" in\"",
		"config.d/a.toml", "\""+long+"\" = \x1b"), stub)
	if err == nil {
		t.Fatal("no error")
	}
	for line := range strings.Lines(err.Error()) {
		if !strings.Contains(line, ".toml:") || strings.Contains(line, "\x1b") || len(line) > 600 {
			t.Errorf("%q", line)
		}
	}
}

func TestAWebhookIsNotPrinted(t *testing.T) {
	t.Parallel()
	_, err := Load(write(t, "config.toml", "[notify]\nurls = ['slack://secret@x', 'https://x/%zzsecret']\n"), stub)
	all, ok := errors.AsType[*Error](err)
	if !ok || len(all.Problems) != 2 || strings.Contains(err.Error(), "secret") {
		t.Errorf("error is %v", err)
	}
}

func TestASlipFindsTheNearestName(t *testing.T) {
	t.Parallel()
	known := []string{"enabled", "timeout", "grace_period", "skip", "max_hold"}
	for s, want := range map[string]string{
		"timeot": "timeout", "tiemout": "timeout", "Timeout": "timeout", "max-hold": "max_hold", "maxhold": "max_hold",
		"grace": "", "gracePeriod": "grace_period", "kip": "skip", "enable": "enabled", "": "", "reboot": "", "x": "",
		strings.Repeat("timeout", 1000): "",
	} {
		if got := nearest(s, known); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

func TestDurationsArePrintedWithoutZeroUnits(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 10 * time.Second: "10s", 20 * time.Minute: "20m", time.Hour: "1h",
		90 * time.Minute: "1h30m", time.Hour + 5*time.Second: "1h0m5s", 24 * time.Hour: "24h",
		1500 * time.Millisecond: "1.5s",
	} {
		if got := short(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// FuzzLoad shows that no text makes Load panic, and that what it refuses it refuses with lines of that text.
func FuzzLoad(f *testing.F) {
	example, err := os.ReadFile(examplePath)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example), "")
	f.Add(uncomment(string(example), true), "[node]\n")
	f.Add(everything, everything)
	for _, text := range []string{
		"node = 1", "node = [1]", "[[node]]", "[source]", "source = [1]", "[[gate]]", "gate.pods = 1", "[[window]]\ndays = 1",
		"[drain]\ntimeout = 1.5", "a", "[", "= 1", "\"\" = 1", "[node]\n\"\" = 1",
		"[boot]\nremove_taints = [':', '=', 'a:b', 1]",
		"[[source]]\ntype = 'file'\npath.a = 1", "\x00", "\xff\xfe", "[metrics]\nlisten = ':'", "[slot]\nmax_hold = '-1s'",
	} {
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, main, dropIn string) {
		path := write(t, "config.toml", main, "config.d/a.toml", dropIn)
		c, err := Load(path, stub)
		if err == nil {
			if c == nil || c.Drain.Timeout <= 0 || c.Taint.Key == "" || c.Cluster.Kubeconfig == "" {
				t.Errorf("%+v", c)
			}
			return
		}
		all, ok := errors.AsType[*Error](err)
		if !ok || len(all.Problems) == 0 {
			t.Fatalf("error is %v", err)
		}
		for _, p := range all.Problems {
			lines := strings.Count(main, "\n") + 1
			if p.File != path {
				lines = strings.Count(dropIn, "\n") + 1
			}
			if p.Message == "" || p.Line < 0 || p.Line > lines || strings.Contains(p.String(), "\n") {
				t.Errorf("%s (of %s lines)", strconv.Quote(p.String()), strconv.Itoa(lines))
			}
		}
	})
}
