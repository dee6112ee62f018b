// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var testWanted = wanted{Key: "kured-agent/reboot-required", Effect: "PreferNoSchedule",
	Startup: []string{"start/any", "start/one:NoSchedule"}}

// patches are the four changes by name, in the order of a reboot.
func patches(o *object) map[string]change {
	return map[string]change{
		"taint":    taintChange(o, testWanted, "kernel update"),
		"cordon":   cordonChange(o, "boot-1"),
		"rollback": rollBackChange(o),
		"clean":    cleanChange(o, testWanted, true),
	}
}

func TestEachChangeIsOnePatch(t *testing.T) {
	files, err := filepath.Glob("testdata/patches/*.node.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".node.json")
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			o, err := parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			changes := patches(o)
			for _, verb := range []string{"taint", "cordon", "rollback", "clean"} {
				body := []byte("no request")
				if change := changes[verb]; !change.empty() {
					if body, err = mergePatch(o, change); err != nil {
						t.Fatal(err)
					}
				}
				fmt.Fprintf(&out, "%s: %s\n", verb, body)
			}
			golden := strings.TrimSuffix(file, ".node.json") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("patches of %s (-want +got):\n%s", name, diff)
			}
		})
	}
}

// foreign are the taints that no change may touch, as the bytes that came.
func foreign(o *object, startup bool) []string {
	var out []string
	for i, t := range o.taints {
		if !testWanted.ours(t) && !(startup && testWanted.startup(t)) {
			out = append(out, compact(o.Spec.Taints[i]))
		}
	}
	return out
}

func compact(raw []byte) string {
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return string(raw)
	}
	return out.String()
}

func FuzzForeignTaintsStayAsTheyAre(f *testing.F) {
	files, err := filepath.Glob("testdata/patches/*.node.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"metadata":{"name":"n","uid":"u","resourceVersion":"1","managedFields":[{"fieldsV1":null}]},` +
		`"spec":{"taints":[null,{"key":"\u2028<\ud800"}]}}`))
	f.Add([]byte(`{"metadata":null,"spec":[],"status":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		o, err := parse(raw)
		if err != nil {
			return
		}
		_ = o.observed(testWanted)
		for verb, change := range patches(o) {
			body, err := mergePatch(o, change)
			if err != nil {
				t.Fatalf("%s: %v", verb, err)
			}
			var sent struct {
				Metadata struct {
					UID             string             `json:"uid"`
					ResourceVersion string             `json:"resourceVersion"`
					Annotations     map[string]*string `json:"annotations"`
				} `json:"metadata"`
				Spec map[string]json.RawMessage `json:"spec"`
			}
			if err := json.Unmarshal(body, &sent); err != nil {
				t.Fatalf("%s: body %q: %v", verb, body, err)
			}
			if sent.Metadata.UID != o.Metadata.UID || sent.Metadata.ResourceVersion != o.Metadata.ResourceVersion {
				t.Errorf("%s: not bound to the object: %s", verb, body)
			}
			for key := range sent.Metadata.Annotations {
				if !strings.HasPrefix(key, prefix) && !slices.Contains(autoscaler, key) {
					t.Errorf("%s touches annotation %q", verb, key)
				}
			}
			for key := range sent.Spec {
				if key != "taints" && key != "unschedulable" {
					t.Errorf("%s touches spec.%s", verb, key)
				}
			}
			if change.taints == nil {
				continue
			}
			var list []json.RawMessage
			if err := json.Unmarshal(sent.Spec["taints"], &list); err != nil {
				t.Fatal(err)
			}
			var kept []string
			for _, raw := range list {
				var entry taint
				if err := json.Unmarshal(raw, &entry); err != nil {
					t.Fatal(err)
				}
				if !testWanted.ours(entry) {
					kept = append(kept, compact(raw))
				}
			}
			if diff := cmp.Diff(foreign(o, verb == "clean"), kept); diff != "" {
				t.Errorf("%s changes foreign taints (-were +are):\n%s", verb, diff)
			}
		}
	})
}

// The taint got another key or effect in the configuration: the entry of the old one goes with the same patch, and only
// that one.
func TestATaintOfAnEarlierConfigurationGoes(t *testing.T) {
	w := wanted{Key: "example.com/new", Effect: "PreferNoSchedule", Former: "kured-agent/reboot-required:NoSchedule"}
	o, err := parse([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","uid":"u1","resourceVersion":"7"},"spec":{"taints":[
		{"key":"kured-agent/reboot-required","effect":"NoSchedule","value":"theirs"},
		{"key":"example.com/a","effect":"NoSchedule"},
		{"key":"kured-agent/reboot-required","effect":"NoSchedule"},
		{"key":"kured-agent/reboot-required","effect":"PreferNoSchedule"}]},"status":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	if seen := o.observed(w); seen.Tainted || !seen.Stray {
		t.Errorf("seen as %+v", seen)
	}
	for name, c := range map[string]change{"tainting": taintChange(o, w, "kernel"), "cleaning": cleanChange(o, w, false)} {
		var got []string
		for _, raw := range *c.taints {
			got = append(got, string(raw))
		}
		all := strings.Join(got, "\n")
		if strings.Contains(all, `{"key":"kured-agent/reboot-required","effect":"NoSchedule"}`) ||
			!strings.Contains(all, "theirs") || !strings.Contains(all, "example.com/a") ||
			!strings.Contains(all, `"kured-agent/reboot-required","effect":"PreferNoSchedule"`) ||
			strings.Contains(all, "example.com/new") != (name == "tainting") {
			t.Errorf("%s leaves\n%s", name, all)
		}
	}
}
