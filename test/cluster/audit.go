// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"
)

// One event per finished request; what the API server asks of itself is left out.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {level: None, users: ["system:apiserver"]}
- {level: Metadata}
`

// Request is one finished request to the API server, as its audit log has it.
type Request struct {
	Time                  time.Time // when it arrived
	User, UserAgent       string
	Verb                  string // get, list, create, patch, …
	Resource, Subresource string
	Namespace, Name       string
	URI                   string
	Code                  int
	Token, Node           string // id of the token that it was made with, and the Node that it is bound to
	Issued                string // id of the token that was the answer
}

type auditLog struct {
	offset   int64
	requests []Request
}

type auditEvent struct {
	RequestReceivedTimestamp    time.Time
	Verb, UserAgent, RequestURI string
	User                        struct {
		Username string
		Extra    map[string][]string
	}
	Annotations    map[string]string
	ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus struct{ Code int }
}

// Requests returns the finished requests so far that match, in the order they finished. Needs Options.Audit.
func (c *Cluster) Requests(match func(Request) bool) []Request {
	c.t.Helper()
	if !c.options.Audit {
		c.t.Fatalf("reading the audit log: Options.Audit is off")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.audit.read(c.path("audit.log")); err != nil {
		c.t.Fatalf("reading the audit log: %v", err)
	}
	var matching []Request
	for _, r := range c.audit.requests {
		if match(r) {
			matching = append(matching, r)
		}
	}
	return matching
}

// WaitRequests is Requests that waits until at least n match or the bound has passed.
func (c *Cluster) WaitRequests(match func(Request) bool, n int, bound time.Duration) []Request {
	c.t.Helper()
	deadline := time.Now().Add(bound)
	for {
		matching := c.Requests(match)
		if len(matching) >= n || time.Now().After(deadline) {
			return matching
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// read takes in the whole lines that were added since the last time.
func (l *auditLog) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	l.offset += int64(len(text))
	for line := range bytes.Lines(text) {
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		l.requests = append(l.requests, Request{
			Time: e.RequestReceivedTimestamp, User: e.User.Username, UserAgent: e.UserAgent, Verb: e.Verb,
			Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
			Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, URI: e.RequestURI, Code: e.ResponseStatus.Code,
			Token: tokenID(e.extra("credential-id")), Node: e.extra("node-name"),
			Issued: tokenID(e.Annotations[authentication+"issued-credential-id"]),
		})
	}
	return nil
}

const authentication = "authentication.kubernetes.io/"

func (e auditEvent) extra(key string) string {
	return strings.Join(e.User.Extra[authentication+key], " ")
}

// tokenID is the claim "jti" of the token that the id of a credential names; empty for a certificate's.
func tokenID(credential string) string {
	if id, ok := strings.CutPrefix(credential, "JTI="); ok {
		return id
	}
	return ""
}

// AgentUser is the user name of every agent's token.
const AgentUser = "system:serviceaccount:kured-agent:agent"

// ByUser matches requests of users whose name begins with prefix.
func ByUser(prefix string) func(Request) bool {
	return func(r Request) bool { return strings.HasPrefix(r.User, prefix) }
}

// ByAgent matches requests whose user agent begins with prefix.
func ByAgent(prefix string) func(Request) bool {
	return func(r Request) bool { return strings.HasPrefix(r.UserAgent, prefix) }
}

// NodeWrites matches accepted writes to the Node itself, not to its status: what every watcher of nodes receives.
func NodeWrites(node string) func(Request) bool {
	return func(r Request) bool {
		return r.Resource == "nodes" && r.Name == node && r.Subresource == "" && r.Code/100 == 2 && !r.dryRun() &&
			(r.Verb == "create" || r.Verb == "update" || r.Verb == "patch")
	}
}

func (r Request) dryRun() bool {
	u, err := url.ParseRequestURI(r.URI)
	return err == nil && u.Query().Has("dryRun")
}

// Count counts requests by verb and resource: "patch nodes", "create pods/eviction".
func Count(requests []Request) map[string]int {
	counts := map[string]int{}
	for _, r := range requests {
		what := r.Resource
		if r.Subresource != "" {
			what += "/" + r.Subresource
		}
		if what == "" {
			what, _, _ = strings.Cut(r.URI, "?")
		}
		counts[fmt.Sprintf("%s %s", r.Verb, what)]++
	}
	return counts
}
