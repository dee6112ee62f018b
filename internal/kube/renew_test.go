// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kured-agent/kured-agent/internal/kube"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

// grant is a token of Node n1 that was issued at a time and lives so long. id tells two of them apart.
func grant(t *testing.T, uid, id string, issued time.Time, life time.Duration) string {
	t.Helper()
	return token(t, map[string]any{
		"iss": "https://cluster", "sub": "system:serviceaccount:kured-agent:agent", "jti": id,
		"iat": issued.Unix(), "exp": issued.Add(life).Unix(),
		"kubernetes.io": map[string]any{"namespace": "kured-agent", "node": map[string]any{"name": "n1", "uid": uid}},
	})
}

const month = 30 * 24 * time.Hour

// authority is an API server that accepts the tokens that it knows and says what time it is.
type authority struct {
	t      *testing.T
	server *httptest.Server
	state  string // directory

	mu      sync.Mutex
	ahead   time.Duration // of the clock
	accepts string        // empty: anything
	used    []string      // tokens, one a request
	asked   map[string]any
	answer  func(w http.ResponseWriter) // to a token request
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, state: t.TempDir()}
	a.server = httptest.NewUnstartedServer(a)
	a.server.EnableHTTP2 = true
	a.server.StartTLS()
	t.Cleanup(a.server.Close)
	return a
}

func (a *authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(a.ahead).UTC().Format(http.TimeFormat))
	used := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	a.used = append(a.used, used)
	switch {
	case a.accepts != "" && used != a.accepts:
		kubetest.Status(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized", nil)
	case strings.HasSuffix(r.URL.Path, "/token"):
		body, _ := io.ReadAll(r.Body)
		a.asked = map[string]any{"path": r.URL.Path}
		_ = json.Unmarshal(body, &a.asked)
		a.answer(w)
	default:
		kubetest.JSON(w, http.StatusOK, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)
	}
}

func (a *authority) grants(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = func(w http.ResponseWriter) {
		kubetest.JSON(w, http.StatusCreated, map[string]any{"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
			"status": map[string]any{"token": token}})
	}
}

func (a *authority) refuses(code int, reason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = func(w http.ResponseWriter) { kubetest.Status(w, code, reason, message, nil) }
}

func (a *authority) set(accepts string, ahead time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.accepts, a.ahead = accepts, ahead
}

// last is the token of the newest request.
func (a *authority) last() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.used) == 0 {
		return ""
	}
	return a.used[len(a.used)-1]
}

// enrol writes the kubeconfig with this user block and returns its path.
func (a *authority) enrol(user string) string {
	a.t.Helper()
	path := filepath.Join(a.state, "..", "kubeconfig")
	kubetest.WriteKubeconfig(a.t, path, a.server, user)
	return path
}

func (a *authority) connect(kubeconfig string) *kube.Client {
	a.t.Helper()
	client, err := kube.Connect(kube.Options{Kubeconfig: kubeconfig, State: a.state, QPS: 10_000})
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(client.CloseIdle)
	return client
}

// shows sends a request and compares the token in it.
func (a *authority) shows(client *kube.Client, what, want string) {
	a.t.Helper()
	err := client.Core().Get().Resource("nodes").Name("n1").MaxRetries(0).Do(a.t.Context()).Error()
	if got := a.last(); got != want {
		a.t.Errorf("%s: the request carried another token (%v)", what, err)
	}
}

func TestARenewedTokenIsUsedAtOnceAndAfterARestart(t *testing.T) {
	a := newAuthority(t)
	began := time.Now().Add(-16 * 24 * time.Hour).Truncate(time.Second)
	first, second := grant(t, "u1", "1", began, month), grant(t, "u1", "2", time.Now(), month)
	path := a.enrol("{token: " + first + "}")
	client := a.connect(path)
	a.shows(client, "before the renewal", first)
	c := client.Credential()
	if c.Kind != kube.KindToken || !c.Expires.Equal(began.Add(month)) || c.Renewed || c.Trouble != "" || c.DueIn() > 1 ||
		c.DueIn() < -5*24*time.Hour {
		t.Errorf("before the renewal: %+v, due in %s", c, c.DueIn())
	}
	fingerprint := client.Fingerprint("n1")

	a.grants(second)
	if err := client.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprint(map[string]any{
		"path":       "/api/v1/namespaces/kured-agent/serviceaccounts/agent/token",
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": 2592000.0, "boundObjectRef": map[string]any{
			"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}},
	})
	if got := fmt.Sprint(a.asked); got != want {
		t.Errorf("asked %s\nwant  %s", got, want)
	}
	a.shows(client, "after the renewal", second)
	if c := client.Credential(); !c.Renewed || c.DueIn() < 13*24*time.Hour || client.Fingerprint("n1") != fingerprint {
		t.Errorf("after the renewal: %+v, due in %s", c, c.DueIn())
	}
	own := filepath.Join(a.state, "token")
	if info, err := os.Stat(own); err != nil || info.Mode() != 0o600 {
		t.Errorf("kept as %v, %v", info, err)
	}
	a.shows(a.connect(path), "after a restart", second)
	if entries, _ := os.ReadDir(a.state); len(entries) != 1 {
		t.Errorf("the state directory holds %v", entries)
	}

	a.enrol("{token: " + first + "}") // as configuration management does
	a.shows(client, "with the kubeconfig written again", second)
	third := grant(t, "u1", "3", time.Now().Add(time.Minute), time.Hour)
	a.enrol("{token: " + third + "}")
	a.shows(client, "enrolled again", third)
	other := grant(t, "u2", "4", began, month)
	a.enrol("{token: " + other + "}")
	a.shows(client, "enrolled again for a Node that was created anew", other)
	if client.Fingerprint("n1") == fingerprint {
		t.Error("another Node object has the same fingerprint")
	}
}

func TestATokenFileIsReadAgainWhenItChanges(t *testing.T) {
	a := newAuthority(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	first, second := grant(t, "u1", "1", time.Now(), month), grant(t, "u1", "2", time.Now(), month)
	write(t, file, first+"\n", 0o600)
	client := a.connect(a.enrol("{tokenFile: " + file + "}"))
	a.shows(client, "at first", first)
	write(t, file+".new", second, 0o600)
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	a.shows(client, "replaced", second)
	write(t, file, "two words", 0o600)
	a.shows(client, "broken", second)
	if trouble := client.Credential().Trouble; !strings.Contains(trouble, file) || strings.Contains(trouble, "two words") {
		t.Errorf("trouble %q", trouble)
	}
	write(t, file, first, 0o644)
	a.shows(client, "world-readable", second)
	if trouble := client.Credential().Trouble; !strings.Contains(trouble, "everybody") {
		t.Errorf("trouble %q", trouble)
	}
	write(t, file, first, 0o600)
	a.shows(client, "mended", first)
	if trouble := client.Credential().Trouble; trouble != "" {
		t.Errorf("trouble %q", trouble)
	}
}

func TestAKubeconfigOfAnotherServerWaitsForAReload(t *testing.T) {
	a := newAuthority(t)
	first := grant(t, "u1", "1", time.Now(), month)
	path := a.enrol("{token: " + first + "}")
	client := a.connect(path)
	moved := kubeconfigFor(t, "https://127.0.0.1:2", "agent", "{token: "+grant(t, "u1", "2", time.Now(), month)+"}")
	write(t, path, mustRead(t, moved), 0o600)
	a.shows(client, "moved", first)
	if trouble := client.Credential().Trouble; !strings.Contains(trouble, "systemctl reload kured-agent") {
		t.Errorf("trouble %q", trouble)
	}
}

func TestARenewedTokenThatOthersCanReachIsNotUsed(t *testing.T) {
	a := newAuthority(t)
	first, second := grant(t, "u1", "1", time.Now(), month), grant(t, "u1", "2", time.Now().Add(time.Hour), month)
	path := a.enrol("{token: " + first + "}")
	client := a.connect(path)
	own := filepath.Join(a.state, "token")
	for mode, reachable := range map[os.FileMode]bool{0o600: false, 0o640: true, 0o604: true, 0o602: true} {
		write(t, own, second, mode)
		want := second
		if reachable {
			want = first
		}
		a.shows(client, fmt.Sprintf("mode %04o", mode), want)
		_, err := kube.Connect(kube.Options{Kubeconfig: path, State: a.state})
		refused, ok := errors.AsType[*kube.RefusedError](err)
		if ok != reachable || ok && !strings.Contains(refused.Error(), "chmod 0600") {
			t.Errorf("mode %04o: a new process says %v", mode, err)
		}
		if trouble := client.Credential().Trouble; (trouble != "") != reachable || strings.Contains(trouble, second) {
			t.Errorf("mode %04o: trouble %q", mode, trouble)
		}
	}
	if os.Geteuid() != 0 {
		t.Log("only root can give a file away")
		return
	}
	write(t, own, second, 0o600)
	if err := os.Chown(own, 54321, -1); err != nil {
		t.Fatal(err)
	}
	a.shows(client, "of another user", first)
	if err := os.Chown(a.state, 54321, -1); err != nil { // now the user of the agent
		t.Fatal(err)
	}
	a.shows(a.connect(path), "of the agent's user, read by root", second)
}

// A power cut in the middle of a write leaves the old file; what else may stand there must not stop the agent.
func TestABrokenRenewedTokenIsPassedOver(t *testing.T) {
	a := newAuthority(t)
	first := grant(t, "u1", "1", time.Now(), month)
	path := a.enrol("{token: " + first + "}")
	for what, content := range map[string]string{
		"empty": "", "half": grant(t, "u1", "2", time.Now().Add(time.Hour), month)[:40], "no text": "\x00\x01",
		"large": strings.Repeat("x", 65<<10), "of another": grant(t, "u2", "3", time.Now().Add(time.Hour), month),
		"older":   grant(t, "u1", "4", time.Now().Add(-time.Hour), month),
		"expired": grant(t, "u1", "5", time.Now().Add(-time.Hour), time.Minute),
	} {
		write(t, filepath.Join(a.state, "token"), content, 0o600)
		a.shows(a.connect(path), what, first)
	}
}

// A server that grants less than was asked for must not lock out a machine whose first token is still good.
func TestOfTwoTokensTheExpiredOneDoesNotCount(t *testing.T) {
	a := newAuthority(t)
	first := grant(t, "u1", "1", time.Now().Add(-2*time.Hour), month)
	write(t, filepath.Join(a.state, "token"), grant(t, "u1", "2", time.Now().Add(-time.Hour), 10*time.Minute), 0o600)
	a.shows(a.connect(a.enrol("{token: "+first+"}")), "the renewed one has expired", first)
}

func TestATokenThatCannotBeKeptIsUsedAllTheSame(t *testing.T) {
	a := newAuthority(t)
	first, second := grant(t, "u1", "1", time.Now(), month), grant(t, "u1", "2", time.Now().Add(time.Hour), month)
	client := a.connect(a.enrol("{token: " + first + "}"))
	a.grants(second)
	if err := os.Remove(a.state); err != nil {
		t.Fatal(err)
	}
	if err := client.Renew(t.Context()); !errors.Is(err, kube.ErrNotKept) {
		t.Errorf("got %v", err)
	}
	a.shows(client, "not kept", second)
}

func TestWhyATokenIsNotRenewedIsSaidWithWhatRepairsIt(t *testing.T) {
	const again = "kubectl kured enroll n1 | ssh n1 sudo kured-agent enroll --kubeconfig -"
	a := newAuthority(t)
	first := grant(t, "u1", "1", time.Now().Add(-20*24*time.Hour), month)
	client := a.connect(a.enrol("{token: " + first + "}"))
	for _, c := range []struct {
		name     string
		arrange  func()
		noAnswer bool
		says     []string
	}{
		{"no right", func() {
			a.refuses(403, "Forbidden", `serviceaccounts "agent" is forbidden: User "x" cannot create resource`)
		}, false, []string{"cannot create resource", "kubectl apply -k"}},
		{"a policy", func() {
			a.refuses(403, "Forbidden", `serviceaccounts "agent" is forbidden: ValidatingAdmissionPolicy 'strict' denied request`)
		}, false, []string{"admission policy", "'strict'", "restores ours"}},
		{"a policy that calls it invalid", func() { a.refuses(422, "Invalid", "expirationSeconds is too long") }, false,
			[]string{"admission policy", "too long"}},
		{"another Node object", func() {
			a.refuses(409, "Conflict", "the UID in the bound object reference (u1) does not match the UID in record")
		}, false, []string{"created anew", again}},
		{"no Node object", func() { a.refuses(404, "NotFound", `nodes "n1" not found`) }, false, []string{"deleted", again}},
		{"the server is not well", func() { a.refuses(500, "InternalError", "etcd is away") }, true, []string{"etcd is away"}},
		{"the server is busy", func() { a.refuses(429, "TooManyRequests", "later") }, true, []string{"later"}},
		{"nonsense", func() { a.grants("nonsense") }, false, []string{"another identity"}},
		{"nothing", func() { a.grants("") }, false, []string{"empty"}},
		{"a token for a header attack", func() { a.grants("a\r\nX: y") }, false, []string{"no token"}},
		{"somebody else's token", func() { a.grants(grant(t, "u2", "2", time.Now(), month)) }, false,
			[]string{"another identity"}},
		{"an old token", func() { a.grants(grant(t, "u1", "3", time.Now().Add(-25*24*time.Hour), month)) }, false,
			[]string{"older"}},
		{"rejected in its time", func() { a.set("another", 0) }, false,
			[]string{"not accepted", `Node "n1" with uid "u1"`, "created anew", again}},
		{"rejected, and by the server's clock it has expired", func() { a.set("another", 11*24*time.Hour) }, false,
			[]string{"not accepted", "expired on", again}},
		{"rejected, and by the server's clock it is not issued yet", func() { a.set("another", -40*24*time.Hour) }, false,
			[]string{"set the clock of the API server"}},
	} {
		c.arrange()
		err := client.Renew(t.Context())
		refused, ok := errors.AsType[*kube.RenewalError](err)
		if !ok || refused.NoAnswer != c.noAnswer {
			t.Errorf("%s: %#v", c.name, err)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", c.name, err, want)
			}
		}
		if strings.Contains(err.Error(), first) || strings.Contains(err.Error(), "c2ln") {
			t.Errorf("%s: the token is in %q", c.name, err)
		}
	}
	a.set("", 0)
	a.server.Close()
	refused, ok := errors.AsType[*kube.RenewalError](client.Renew(t.Context()))
	if !ok || !refused.NoAnswer {
		t.Errorf("no server: %v", refused)
	}
}

// What the loop shows is the error of its own request: it must be as clear as that of a renewal.
func TestARejectedRequestOfAnyKindSaysWhatRepairsIt(t *testing.T) {
	a := newAuthority(t)
	client := a.connect(a.enrol("{token: " + grant(t, "u1", "1", time.Now().Add(-31*24*time.Hour), month) + "}"))
	a.set("another", 0)
	err := client.Core().Get().Resource("nodes").Name("n1").Do(t.Context()).Error()
	if err == nil || !strings.Contains(err.Error(), "expired on") || !strings.Contains(err.Error(), "kured enroll n1") {
		t.Errorf("got %v", err)
	}
	if problems := problems(t, client.Prove(t.Context(), "n1", "0123456789abcdef0123456789abcdef")); len(problems) != 1 ||
		!strings.Contains(problems[0], "expired on") {
		t.Errorf("got %q", problems)
	}
}

func TestTheClockOfTheAPIServerCounts(t *testing.T) {
	a := newAuthority(t)
	issued := time.Now().Add(-time.Hour)
	client := a.connect(a.enrol("{token: " + grant(t, "u1", "1", issued, month) + "}"))
	look := func(ahead time.Duration) kube.Credential {
		a.set("", ahead)
		if err := client.Core().Get().Resource("nodes").Name("n1").Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		return client.Credential()
	}
	if c := look(time.Minute); c.Trouble != "" || c.DueIn() < 13*24*time.Hour {
		t.Errorf("in step: %+v", c)
	}
	// This host's clock stands still in the past: without a battery it may.
	if c := look(20 * 24 * time.Hour); c.DueIn() > 0 || !strings.Contains(c.Trouble, "20 days behind the API server's") ||
		!strings.Contains(c.Trouble, "timedatectl") {
		t.Errorf("the host is behind: %+v, due in %s", c, c.DueIn())
	}
	if c := look(40 * 24 * time.Hour); !strings.Contains(c.Trouble, "the token expired on") {
		t.Errorf("the host is far behind: %+v", c)
	}
	if c := look(-10 * time.Minute); !strings.Contains(c.Trouble, "10 minutes ahead of the API server's") {
		t.Errorf("the host is ahead: %+v", c)
	}
}

// A host without a battery for its clock starts in 1970, and no certificate is valid then.
func TestACertificateOutOfItsTimeIsTheClocksFaultToo(t *testing.T) {
	pair, err := tls.X509KeyPair(certificateFor(t, "server", time.Unix(1, 0), time.Unix(2, 0)))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kubetest.WriteKubeconfig(t, path, server, "{token: "+grant(t, "u1", "1", time.Now(), month)+"}")
	err = kubetest.Connect(t, path).Renew(t.Context())
	refused, ok := errors.AsType[*kube.RenewalError](err)
	if !ok || refused.NoAnswer || !strings.Contains(err.Error(), "this host's clock says") ||
		!strings.Contains(err.Error(), "timedatectl") {
		t.Errorf("got %v", err)
	}
}

func TestTheTokenIsShownToNobodyElse(t *testing.T) {
	a := newAuthority(t)
	secret := grant(t, "u1", "1", time.Now(), month)
	thief := make(chan string, 1)
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		thief <- r.Header.Get("Authorization")
		kubetest.JSON(w, http.StatusOK, "{}")
	}))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	server.StartTLS() // with the same certificate as elsewhere
	t.Cleanup(server.Close)
	a.server = server
	client := a.connect(a.enrol("{token: " + secret + "}"))
	_ = client.Core().Get().Resource("nodes").Name("n1").Do(t.Context()).Error()
	select {
	case got := <-thief:
		if got != "" {
			t.Error("the token went where the API server redirected to")
		}
	default: // not even asked
	}
}

func TestWhatTheAgentDoesNotRenewSaysWhy(t *testing.T) {
	now := time.Now()
	sub := "system:serviceaccount:kured-agent:agent"
	node := map[string]any{"node": map[string]any{"name": "n1", "uid": "u1"}}
	dates := func(iat, exp time.Time) map[string]any {
		return map[string]any{"sub": sub, "iat": iat.Unix(), "exp": exp.Unix(), "kubernetes.io": node}
	}
	for name, c := range map[string]struct {
		claims map[string]any
		note   string
	}{
		"bound to its Node": {dates(now, now.Add(time.Hour)), ""},
		"not bound":         {map[string]any{"sub": sub, "iat": now.Unix(), "exp": now.Unix() + 60}, "not bound to a Node"},
		"bound to a pod": {map[string]any{"sub": sub, "kubernetes.io": map[string]any{
			"node": node["node"], "pod": map[string]any{"name": "p"}}}, "bound to a pod"},
		"without an end":   {map[string]any{"sub": sub, "iat": now.Unix(), "kubernetes.io": node}, "never expires"},
		"backwards":        {dates(now, now.Add(-time.Hour)), "make no sense"},
		"nonsense":         {map[string]any{"sub": sub, "iat": -1, "exp": now.Unix(), "kubernetes.io": node}, "make no sense"},
		"another account":  {map[string]any{"sub": "system:serviceaccount:x:y", "kubernetes.io": node}, "belongs to"},
		"no token of ours": {map[string]any{}, "no token of a service account"},
	} {
		client := kubetest.Connect(t, kubeconfig(t, "agent", "{token: "+token(t, c.claims)+"}"))
		got := client.Credential()
		if !strings.Contains(got.Note, c.note) || (c.note == "") != (got.Note == "") || (got.Note == "") == got.Due.IsZero() {
			t.Errorf("%s: %+v", name, got)
		}
		if err := client.Renew(t.Context()); (err == nil) || c.note != "" && client.Requests() > 0 {
			t.Errorf("%s: renewed with %v after %d requests", name, err, client.Requests())
		}
	}
}

func TestAClientCertificateThatExpiresIsTold(t *testing.T) {
	for life, want := range map[time.Duration]string{
		time.Hour: "", -time.Minute: "the client certificate expired on", time.Minute: "the client certificate expires on",
	} {
		cert, key := certificateFor(t, "kured-agent:n1", time.Now().Add(-59*time.Minute), time.Now().Add(life))
		dir := t.TempDir()
		write(t, filepath.Join(dir, "c.pem"), string(cert), 0o600)
		write(t, filepath.Join(dir, "k.pem"), string(key), 0o600)
		client := kubetest.Connect(t, kubeconfig(t, "agent",
			fmt.Sprintf("{client-certificate: %s/c.pem, client-key: %s/k.pem}", dir, dir)))
		c := client.Credential()
		if c.Kind != kube.KindCertificate || !c.Due.IsZero() || c.Note == "" || !strings.Contains(c.Trouble, want) ||
			(want == "") != (c.Trouble == "") || client.BoundNode() != "n1" || !client.Expires().Equal(c.Expires) {
			t.Errorf("%s left: %+v", life, c)
		}
	}
}

// FuzzKubeconfig: what is no kubeconfig of ours is refused with its name, whatever else it is.
func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Config\ncurrent-context: c\n" +
		"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"users: [{name: u, user: {token: a.e30.b}}]\n"))
	f.Add([]byte("users: [{name: u, user: {exec: {command: x}}}, null]\ncontexts: [null]\ncurrent-context: ''"))
	f.Add([]byte("users: [{name: u, user: {client-certificate-data: LS0t}}]"))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		client, err := kube.Connect(kube.Options{Kubeconfig: path})
		switch {
		case err != nil && !strings.Contains(err.Error(), path):
			t.Errorf("%q does not name the file", err)
		case err == nil:
			_, _ = client.Credential(), client.Fingerprint("n1")
		}
	})
}
