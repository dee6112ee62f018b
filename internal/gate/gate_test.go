// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

func reply(kind, result string) string {
	return fmt.Sprintf(`{"status":"success","data":{"resultType":%q,"result":%s}}`, kind, result)
}

func TestWhatAnAnswerBlocksWith(t *testing.T) {
	for _, c := range []struct {
		name, body string
		code       int
		want       string // of the one blocker; empty: open
		fails      string // of the error
	}{
		{name: "no series", body: reply("vector", `[]`)},
		{name: "an alert", body: reply("vector", `[{"metric":{"alertname":"NodeDown","instance":"n2"},"value":[1,"1"]}]`),
			want: "NodeDown (n2)"},
		{name: "series without a name", body: reply("vector", `[{"metric":{"__name__":"up","job":"x"},"value":[1,"0"]}]`),
			want: `up{job="x"}`},
		{name: "a value of zero is a result too", body: reply("vector", `[{"metric":{},"value":[1,"0"]}]`), want: "{}"},
		{name: "our own alert",
			body: reply("vector", `[{"metric":{"alertname":"KuredAgentRebootRequired"},"value":[1,"1"]}]`)},
		{name: "our own and another",
			body: reply("vector", `[{"metric":{"alertname":"KuredAgentX"}},{"metric":{"alertname":"Other"}}]`), want: "Other"},
		{name: "a matrix", body: reply("matrix", `[{"metric":{"alertname":"A"},"values":[[1,"1"]]}]`), want: "A"},
		{name: "an empty matrix", body: reply("matrix", `[]`)},
		{name: "scalar zero", body: reply("scalar", `[1,"0"]`)},
		{name: "scalar -0.0", body: reply("scalar", `[1,"-0.0"]`)},
		{name: "scalar one", body: reply("scalar", `[1,"1"]`), want: `scalar "1"`},
		{name: "scalar NaN", body: reply("scalar", `[1,"NaN"]`), want: `scalar "NaN"`},
		{name: "scalar that is none", body: reply("scalar", `[1,"x"]`), want: `scalar "x"`},
		{name: "empty string", body: reply("string", `[1,""]`)},
		{name: "string", body: reply("string", `[1,"no"]`), want: `string "no"`},
		{name: "unknown type", body: reply("histogram", `[]`), fails: "unknown result type"},
		{name: "no result", body: reply("vector", `null`), fails: "no result"},
		{name: "wrong result", body: reply("vector", `{"a":1}`), fails: "reading a vector"},
		{name: "short scalar", body: reply("scalar", `[1]`), fails: "not a pair"},
		{name: "error with its text", code: 400,
			body: `{"status":"error","errorType":"bad_data","error":"parse error at char 3"}`, fails: "HTTP 400: parse error"},
		{name: "error page", code: 502, body: `<html>`, fails: "HTTP 502"},
		{name: "login page", body: `<html>`, fails: "not an answer of the Prometheus API"},
		{name: "other JSON", body: `{"ok":true}`, fails: "not an answer of the Prometheus API"},
		{name: "empty", body: ``, fails: "not an answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.code == 0 {
				c.code = 200
			}
			found, err := evaluate(c.code, []byte(c.body))
			switch {
			case c.fails != "":
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("got %q, %v", found, err)
				}
			case err != nil:
				t.Error(err)
			case c.want == "" && len(found) > 0, c.want != "" && (len(found) != 1 || found[0] != c.want):
				t.Errorf("got %q", found)
			}
		})
	}
}

func FuzzAnyAnswerIsSurvived(f *testing.F) {
	f.Add(200, reply("vector", `[{"metric":{"alertname":"A"}}]`))
	f.Add(200, reply("scalar", `[1,"1"]`))
	f.Add(500, `{`)
	f.Fuzz(func(_ *testing.T, code int, body string) { _, _ = evaluate(code, []byte(body)) })
}

func TestTheQueryAndTheTokenReachTheServer(t *testing.T) {
	var seen []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.URL.Path+" "+r.URL.Query().Get("query")+" "+r.Header.Get("Authorization"))
		_, _ = w.Write([]byte(reply("vector", `[]`)))
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	set := New(Options{Prometheus: []Prometheus{{URL: server.URL + "/prom/", Query: `ALERTS{a="b&c"}`, CAFile: ca,
		TokenFile: token}}})
	for _, secret := range []string{"one\n", "two"} { // a renewed token is used at once
		write(t, token, secret)
		if got := set.Check(t.Context()); got != nil {
			t.Fatalf("got %q", got)
		}
	}
	want := []string{`/prom/api/v1/query ALERTS{a="b&c"} Bearer one`, `/prom/api/v1/query ALERTS{a="b&c"} Bearer two`}
	if fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("seen %q", seen)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNoAnswerBlocks(t *testing.T) {
	redirect := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/login", http.StatusFound))
	t.Cleanup(redirect.Close)
	huge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 2<<20))
	}))
	t.Cleanup(huge.Close)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte(`{"status":`))
	}))
	t.Cleanup(broken.Close)
	untrusted := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(untrusted.Close)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "no-ca"), "hello")
	for name, p := range map[string]Prometheus{
		"nobody listens":  {URL: "http://127.0.0.1:1"},
		"no URL":          {URL: "prometheus:9090"},
		"empty":           {},
		"redirect":        {URL: redirect.URL},
		"too much":        {URL: huge.URL},
		"breaks off":      {URL: broken.URL},
		"unknown CA":      {URL: untrusted.URL},
		"no CA file":      {URL: untrusted.URL, CAFile: dir + "/gone"},
		"CA file without": {URL: untrusted.URL, CAFile: dir + "/no-ca"},
		"no token file":   {URL: broken.URL, TokenFile: dir + "/gone"},
	} {
		t.Run(name, func(t *testing.T) {
			got := New(Options{Prometheus: []Prometheus{p}}).Check(t.Context())
			if len(got) != 1 || !strings.Contains(got[0], "no answer") || len(got[0]) > 410 {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestPasswordsInURLsAreNotPrinted(t *testing.T) {
	got := New(Options{Prometheus: []Prometheus{{URL: "http://user:geheim@127.0.0.1:1"}}}).Check(t.Context())
	if len(got) != 1 || strings.Contains(got[0], "geheim") {
		t.Errorf("got %q", got)
	}
}

func TestAServerThatNeverAnswersBlocks(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	set := New(Options{Prometheus: []Prometheus{{URL: server.URL}}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := set.Check(ctx); len(got) != 1 || !strings.Contains(got[0], "deadline") {
		t.Errorf("got %q", got)
	}
}

func TestPodsBlockWhileTheyRun(t *testing.T) {
	var query string
	pods := []map[string]any{}
	k, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.Query().Get("fieldSelector") + " " + r.URL.Query().Get("labelSelector")
		kubetest.JSON(w, 200, map[string]any{"kind": "PodList", "apiVersion": "v1", "items": pods})
	}))
	set := New(Options{Pods: []string{"app=backup"}, Node: "n1", Core: k.Core()})
	for _, c := range []struct {
		phase  string
		blocks bool
	}{{"Running", true}, {"Pending", true}, {"Unknown", true}, {"Succeeded", false}, {"Failed", false}} {
		pods = []map[string]any{{"metadata": map[string]any{"name": "p", "namespace": "ns"},
			"status": map[string]any{"phase": c.phase}}}
		got := set.Check(t.Context())
		if (len(got) == 1 && strings.Contains(got[0], "ns/p")) != c.blocks || len(got) > 1 {
			t.Errorf("%s: %q", c.phase, got)
		}
	}
	if query != "spec.nodeName=n1,status.phase!=Succeeded,status.phase!=Failed app=backup" {
		t.Errorf("asked for %q", query)
	}
}

func TestPodsThatCannotBeListedBlock(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"forbidden":  func(w http.ResponseWriter, _ *http.Request) { kubetest.Status(w, 403, "Forbidden", "no right", nil) },
		"unreadable": func(w http.ResponseWriter, _ *http.Request) { kubetest.JSON(w, 200, `{"items":[{"metadata":1}]}`) },
		"broken":     func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			k, _ := kubetest.Server(t, handler)
			got := New(Options{Pods: []string{"a=b"}, Node: "n1", Core: k.Core()}).Check(t.Context())
			if len(got) != 1 || !strings.Contains(got[0], "answer") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestBlockersComeInTheOrderOfTheOptions(t *testing.T) {
	body := func(name string) *httptest.Server {
		raw, err := json.Marshal([]any{map[string]any{"metric": map[string]any{"alertname": name}}})
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(reply("vector", string(raw))))
		}))
		t.Cleanup(s.Close)
		return s
	}
	got := New(Options{Prometheus: []Prometheus{{URL: body("First").URL}, {URL: body("Second").URL}}}).Check(t.Context())
	if len(got) != 2 || !strings.Contains(got[0], "First") || !strings.Contains(got[1], "Second") {
		t.Errorf("got %q", got)
	}
}
