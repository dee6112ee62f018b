// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// kured ends its process on the first conflict of a patch.
func TestFiftyConflictsInARowConvergeAndLeaveForeignTaintsAsTheyAre(t *testing.T) {
	const rare = `{"key":"dedicated","value":"gpu","effect":"NoSchedule","aFieldOfTomorrow":{"b":[1,2.50]},"timeAdded":"2026-11-30T12:00:00Z"}`
	for verb, do := range map[string]func(c *Client) error{
		"taint":  func(c *Client) error { return c.Taint(t.Context(), "kernel") },
		"cordon": func(c *Client) error { return c.Cordon(t.Context(), "b1") },
		"clean":  func(c *Client) error { return c.Clean(t.Context()) },
	} {
		t.Run(verb, func(t *testing.T) {
			s := newNodeServer(t, strings.Replace(bare, `"spec":{}`, `"spec":{"taints":[`+rare+`]}`, 1))
			c := client(t, s)
			if verb == "clean" {
				if err := c.Taint(t.Context(), "kernel"); err != nil {
					t.Fatal(err)
				}
			}
			s.conflicts = 50
			n := 0
			s.before = func(object map[string]any) { // adds one taint, and takes its own off again every second time
				n++
				spec := object["spec"].(map[string]any)
				taints := slices.DeleteFunc(spec["taints"].([]any), func(v any) bool {
					return n%2 == 0 && strings.HasPrefix(v.(map[string]any)["key"].(string), "other-")
				})
				spec["taints"] = append(taints, map[string]any{"key": fmt.Sprintf("other-%d", n), "effect": "NoExecute"})
			}
			tries := 1
			for ; do(c) != nil; tries++ { // as the loop does
				if tries > 50/maxTries+1 {
					t.Fatalf("no end after %d tries", tries)
				}
			}
			if n != 50 {
				t.Errorf("%d conflicts", n)
			}
			var foreign []string
			for _, v := range s.object["spec"].(map[string]any)["taints"].([]any) {
				if v.(map[string]any)["key"] == testWanted.Key {
					continue
				}
				raw, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				foreign = append(foreign, string(raw))
			}
			var asSent any
			if err := json.Unmarshal([]byte(rare), &asSent); err != nil {
				t.Fatal(err)
			}
			first, err := json.Marshal(asSent)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{string(first), `{"effect":"NoExecute","key":"other-50"}`}, foreign); diff != "" {
				t.Errorf("foreign taints (-want +got):\n%s", diff)
			}
			if got, err := c.Read(t.Context(), 0); err != nil || got.Tainted != (verb == "taint") || got.Unschedulable != (verb == "cordon") {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// The patch itself has the bytes that came, whatever the other writer did to them in between.
func TestAPatchAfterConflictsSendsForeignTaintsByteForByte(t *testing.T) {
	const odd = `{"effect" : "NoSchedule", "key":"z\u00fc","n":1.0e2}`
	answers := 0
	var sent []byte
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			answers++
			_, _ = fmt.Fprintf(w, `{"metadata":{"name":"n1","uid":"u1","resourceVersion":"%d"},"spec":{"taints":[%s]}}`, answers, odd)
			return
		}
		if answers < 5 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`)
			return
		}
		body := json.NewDecoder(r.Body)
		var patch struct {
			Spec struct {
				Taints []json.RawMessage `json:"taints"`
			} `json:"spec"`
		}
		if err := body.Decode(&patch); err == nil && len(patch.Spec.Taints) == 2 {
			sent = patch.Spec.Taints[0]
		}
		_, _ = fmt.Fprint(w, bare)
	})
	if err := client(t, server).Taint(t.Context(), "kernel"); err != nil {
		t.Fatal(err)
	}
	if compact(sent) != compact([]byte(odd)) {
		t.Errorf("sent %s, want %s", sent, odd)
	}
}
