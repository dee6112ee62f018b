// SPDX-License-Identifier: Apache-2.0

package overstep

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The agent of "mine" is whose credential was stolen. Both Nodes exist, and "yours" holds slot-default-0 of one.
const mine, yours = "worker-1", "worker-2"

// What a body says for the uid of a Node; it is replaced when the Nodes exist.
const uidOfMine, uidOfYours, uidOfOld = "UID-OF-MINE", "UID-OF-YOURS", "00000000-0000-0000-0000-000000000000"

const namesNoNode = "this credential names no Node"

// attempt is one request that has to be refused.
type attempt struct {
	what                     string // a cell of the table
	verb, resource           string // as RBAC names them: patch nodes/status
	method, path, body, kind string // kind is the content type of a patch, a merge patch unless it is given
	because                  string // what the admission policy answers; empty: RBAC refuses
	certificate              string // the same for a certificate, where that differs
	given, after             string // what an admin does before and after it, with kubectl
	lags                     bool   // the policy hears of "given" a moment later
}

type section struct {
	title, optional string // optional is the manifest without which all of it is allowed
	attempts        []attempt
}

var sections = []section{{title: "Nodes", attempts: nodeAttempts}, {title: "Slots", attempts: slotAttempts},
	{title: "Credentials", attempts: tokenAttempts}, {title: "Pods", attempts: podAttempts},
	{title: "Evictions, with `packaging/kubernetes/optional/policy-eviction.yaml`",
		optional: "optional/policy-eviction.yaml", attempts: evictionAttempts},
	{title: "Anything else", attempts: otherAttempts}}

func patchNode(what, node, body, because string) attempt {
	return attempt{what: what, verb: "patch", resource: "nodes", method: "PATCH", path: "/api/v1/nodes/" + node,
		body: body, because: because}
}

const (
	notYours    = `kured-agent on node "worker-1" may not modify node "worker-2"`
	ownKeyOnly  = "kured-agent may only change taints with its own key"
	notOurs     = "kured-agent may cordon only with its marker and uncordon only what it cordoned"
	ownNotes    = "kured-agent may only change its own annotations"
	noRefs      = "kured-agent may not change finalizers or ownerReferences"
	ourTaint    = `{"spec":{"taints":[{"key":"kured-agent/reboot-required","effect":"PreferNoSchedule"}]}}`
	ourCordon   = `{"metadata":{"annotations":{"kured-agent/cordoned":"b"}},"spec":{"unschedulable":true}}`
	foreign     = `{"spec":{"taints":[{"key":"example.com/x","effect":"NoSchedule"}]}}`
	noExecute   = `{"spec":{"taints":[{"key":"kured-agent/reboot-required","effect":"NoExecute"}]}}`
	uncordon    = `{"spec":{"unschedulable":null}}`
	marker      = `{"metadata":{"annotations":{"kured-agent/cordoned":"b"}}}`
	aNode       = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"worker-3"}}`
	aStatus     = `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	adoptedNode = `{"metadata":{"ownerReferences":` +
		`[{"apiVersion":"v1","kind":"Node","name":"worker-2","uid":"UID-OF-YOURS"}]}}`
)

var nodeAttempts = []attempt{
	patchNode("put our taint on another Node", yours, ourTaint, notYours),
	patchNode("cordon another Node, with our marker", yours, ourCordon, notYours),
	patchNode("change a label of another Node", yours, `{"metadata":{"labels":{"a":"b"}}}`, notYours),
	patchNode("change an annotation of another Node, `kured-agent/hold`", yours,
		`{"metadata":{"annotations":{"kured-agent/hold":"x"}}}`, notYours),
	{what: "change the status of another Node", verb: "patch", resource: "nodes/status", method: "PATCH",
		path: "/api/v1/nodes/worker-2/status", body: aStatus},
	patchNode("add a foreign taint to its own Node", mine, foreign, ownKeyOnly),
	func() attempt {
		a := patchNode("take a foreign taint off its own Node", mine, `{"spec":{"taints":null}}`, ownKeyOnly)
		a.given, a.after = "taint node worker-1 example.com/x:NoSchedule", "taint node worker-1 example.com/x-"
		return a
	}(),
	patchNode("give our taint the effect `NoExecute`", mine, noExecute, "the kured-agent taint may not be NoExecute"),
	patchNode("cordon its own Node without our marker", mine, `{"spec":{"unschedulable":true}}`, notOurs),
	humanCordon("lift the cordon of a human on its own Node", uncordon, notOurs),
	humanCordon("put our marker on the cordon of a human, to lift it afterwards", marker,
		"kured-agent may not put its marker on a cordon of somebody else"),
	patchNode("change a label of its own Node", mine, `{"metadata":{"labels":{"a":"b"}}}`,
		"kured-agent may not change labels"),
	patchNode("set a foreign annotation of its own Node", mine,
		`{"metadata":{"annotations":{"example.com/a":"b"}}}`, ownNotes),
	func() attempt {
		a := patchNode("remove a foreign annotation of its own Node", mine,
			`{"metadata":{"annotations":{"example.com/a":null}}}`, ownNotes)
		a.given, a.after = "annotate node worker-1 example.com/a=b", "annotate node worker-1 example.com/a-"
		return a
	}(),
	patchNode("give its own Node another pod network", mine,
		`{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`, "kured-agent may not change other spec fields"),
	patchNode("hold up the deletion of its own Node with a finalizer", mine,
		`{"metadata":{"finalizers":["example.com/f"]}}`, noRefs),
	patchNode("tie its own Node to another one's life with an owner reference", mine, adoptedNode, noRefs),
	{what: "change the status of its own Node", verb: "patch", resource: "nodes/status", method: "PATCH",
		path: "/api/v1/nodes/worker-1/status", body: aStatus},
	{what: "replace its own Node (PUT)", verb: "update", resource: "nodes", method: "PUT",
		path: "/api/v1/nodes/worker-1", body: strings.ReplaceAll(aNode, "worker-3", mine)},
	{what: "create a Node", verb: "create", resource: "nodes", method: "POST", path: "/api/v1/nodes", body: aNode},
	{what: "create a Node by server-side apply", verb: "patch", resource: "nodes", method: "PATCH",
		path: "/api/v1/nodes/worker-3?fieldManager=x", body: aNode, kind: "application/apply-patch+yaml",
		because: `nodes "worker-3" is forbidden`}, // RBAC; before 1.31 in no more words
	{what: "delete its own Node", verb: "delete", resource: "nodes", method: "DELETE", path: "/api/v1/nodes/worker-1"},
	{what: "delete another Node", verb: "delete", resource: "nodes", method: "DELETE", path: "/api/v1/nodes/worker-2"},
	{what: "watch the Nodes", verb: "watch", resource: "nodes", method: "GET", path: "/api/v1/nodes?watch=true"},
}

func humanCordon(what, body, because string) attempt {
	a := patchNode(what, mine, body, because)
	a.given, a.after = "cordon worker-1", "uncordon worker-1"
	return a
}

const (
	leases      = "/apis/coordination.k8s.io/v1/namespaces/kured-agent/leases"
	outsideOf   = `is outside of ConfigMap kured-agent-pools`
	ownedByMine = `[{"apiVersion":"v1","kind":"Node","name":"worker-1","uid":"UID-OF-MINE"}]`
	notOwned    = "a slot must be owned by the agent's own Node"
)

// takeSlot creates a lease of pool control-plane unless it is given another name.
func takeSlot(what, name, holder, owners, because string) attempt {
	return attempt{what: what, verb: "create", resource: "leases", method: "POST", path: leases, because: because,
		body: fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,`+
			`"labels":{"kured-agent/pool":"control-plane"},"ownerReferences":%s},"spec":{"holderIdentity":%q}}`,
			name, owners, holder)}
}

func owner(name, uid string) string {
	return fmt.Sprintf(`[{"apiVersion":"v1","kind":"Node","name":%q,"uid":%q}]`, name, uid)
}

const slot = "slot-control-plane-0"

var slotAttempts = []attempt{
	takeSlot("take a slot in another's name", slot, yours, ownedByMine, "holderIdentity must be the agent's own node"),
	takeSlot("take a slot without an owner, which would outlive the Node", slot, mine, "[]", notOwned),
	takeSlot("take a slot that another's Node owns", slot, mine, owner(yours, uidOfYours), notOwned),
	func() attempt {
		a := takeSlot("take a slot that an earlier Node of its name owns", slot, mine, owner(mine, uidOfOld), notOwned)
		a.certificate = "accepted: a certificate carries no uid. The garbage collector deletes such a slot at once"
		return a
	}(),
	takeSlot("take a slot beyond N", "slot-default-1", mine, ownedByMine, `slot "slot-default-1" `+outsideOf),
	takeSlot("take a slot of a pool that is not listed", "slot-mine-0", mine, ownedByMine,
		`slot "slot-mine-0" `+outsideOf),
	takeSlot("create a Lease that is no slot", "election", mine, ownedByMine, `slot "election" `+outsideOf),
	func() attempt {
		a := takeSlot("take a slot while the fleet is paused", slot, mine, ownedByMine, "the fleet is paused: freeze")
		const patch = "-n kured-agent patch configmap kured-agent-pools --type merge -p "
		a.given, a.after = patch+`{"data":{"paused":"freeze"}}`, patch+`{"data":{"paused":null}}`
		a.lags = true
		return a
	}(),
	func() attempt {
		a := takeSlot("take a second slot", slot, mine, ownedByMine, "the node holds slot-spare-0 already")
		a.given, a.after, a.lags = "apply -f SPARE", "-n kured-agent delete lease slot-spare-0", true
		return a
	}(),
	{what: "delete another's slot", verb: "delete", resource: "leases", method: "DELETE",
		path: leases + "/slot-default-0", because: "a slot may be changed or deleted only by its holder"},
	{what: "change another's slot", verb: "patch", resource: "leases", method: "PATCH",
		path: leases + "/slot-default-0", body: `{"spec":{"holderIdentity":"worker-1"}}`},
	{what: "delete all slots", verb: "deletecollection", resource: "leases", method: "DELETE", path: leases},
	{what: "touch a kubelet's own Lease, its sign of life", verb: "delete", resource: "leases", method: "DELETE",
		path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/worker-2"},
	{what: "change how many may be away, or lift a pause", verb: "patch", resource: "configmaps", method: "PATCH",
		path: "/api/v1/namespaces/kured-agent/configmaps/kured-agent-pools", body: `{"data":{"default":"99"}}`},
}

const (
	accounts = "/api/v1/namespaces/kured-agent/serviceaccounts/"
	ownToken = "kured-agent may only renew a token bound to its own Node"
)

func token(what, account, spec, because string) attempt {
	return attempt{what: what, verb: "create", resource: "serviceaccounts/token", method: "POST",
		path: accounts + account + "/token", because: because,
		body: `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{` + spec + `}}`}
}

func boundTo(kind, name, uid string) string {
	return fmt.Sprintf(`"expirationSeconds":3600,"boundObjectRef":{"apiVersion":"v1","kind":%q,"name":%q,"uid":%q}`,
		kind, name, uid)
}

const (
	aRole = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"x"},` +
		toRole
	toRole   = `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"}}`
	aRequest = `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"x"},` +
		`"spec":{"request":"eA==","signerName":"kubernetes.io/kube-apiserver-client","usages":["client auth"]}}`
)

var tokenAttempts = []attempt{
	token("get a token for another Node", "agent", boundTo("Node", yours, uidOfYours), ownToken),
	func() attempt {
		a := token("get a token for an earlier Node of its name", "agent", boundTo("Node", mine, uidOfOld), ownToken)
		a.certificate = "does not match the UID in record"
		return a
	}(),
	token("get a token for a year", "agent", strings.Replace(boundTo("Node", mine, uidOfMine), "3600", "31536000", 1),
		"a kured-agent token may live for at most 30 days (2592000 seconds)"),
	token("get a token that is bound to nothing", "agent", `"expirationSeconds":3600`, ownToken),
	token("get a token that is bound to a pod", "agent", boundTo("Pod", "theirs", uidOfOld), ownToken),
	token("get a token of another account", "default", boundTo("Node", mine, uidOfMine), ""),
	{what: "request a client certificate", verb: "create", resource: "certificatesigningrequests", method: "POST",
		path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", body: aRequest},
	{what: "give itself a role", verb: "create", resource: "clusterrolebindings", method: "POST",
		path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body: aRole},
}

const pods = "/api/v1/namespaces/default/pods"

var podAttempts = []attempt{
	{what: "delete a pod, past its disruption budget", verb: "delete", resource: "pods", method: "DELETE",
		path: pods + "/ours"},
	{what: "delete all pods", verb: "deletecollection", resource: "pods", method: "DELETE", path: pods},
	{what: "create a pod", verb: "create", resource: "pods", method: "POST", path: pods,
		body: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{"name":"x","image":"x"}]}}`},
	{what: "change a pod", verb: "patch", resource: "pods", method: "PATCH", path: pods + "/ours",
		body: `{"metadata":{"labels":{"a":"b"}}}`},
	{what: "run something in a pod", verb: "create", resource: "pods/exec", method: "POST",
		path: pods + "/ours/exec?command=id"},
	{what: "read the log of a pod", verb: "get", resource: "pods/log", method: "GET", path: pods + "/ours/log"},
	{what: "watch pods", verb: "watch", resource: "pods", method: "GET", path: "/api/v1/pods?watch=true"},
}

var evictionAttempts = []attempt{{
	what: "evict a pod of another Node", verb: "create", resource: "pods/eviction", method: "POST",
	path:    pods + "/theirs/eviction",
	because: `kured-agent on node "worker-1" may not evict pod default/theirs of another node`,
	body:    `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"theirs","namespace":"default"}}`,
}}

const admission = "/apis/admissionregistration.k8s.io/v1/"

var otherAttempts = []attempt{
	{what: "read secrets", verb: "list", resource: "secrets", method: "GET", path: "/api/v1/secrets"},
	{what: "read a ConfigMap other than `kured-agent-pools`", verb: "get", resource: "configmaps", method: "GET",
		path: "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"},
	{what: "change a DaemonSet", verb: "patch", resource: "daemonsets", method: "PATCH",
		path: "/apis/apps/v1/namespaces/kube-system/daemonsets/x", body: `{"spec":{}}`},
	{what: "remove the policy that confines it", verb: "delete", resource: "validatingadmissionpolicies",
		method: "DELETE", path: admission + "validatingadmissionpolicies/kured-agent-node"},
	{what: "unbind the policy that confines it", verb: "delete", resource: "validatingadmissionpolicybindings",
		method: "DELETE", path: admission + "validatingadmissionpolicybindings/kured-agent-node"},
	{what: "reach a kubelet through the API server", verb: "get", resource: "nodes/proxy", method: "GET",
		path: "/api/v1/nodes/worker-2/proxy/pods"},
	{what: "write an event outside of namespace `default`", verb: "create", resource: "events", method: "POST",
		path: "/api/v1/namespaces/kube-system/events", body: `{"apiVersion":"v1","kind":"Event","metadata":{"name":"x"}}`},
}

// grant is what the manifests allow. verbs and resources are as RBAC names them.
type grant struct {
	verbs, resource, where, why string
}

var grants = []grant{
	{"get, list, patch", "nodes", "every Node; the policy leaves its own to write", "taint, cordon, and how many wait"},
	{"list", "pods", everywhere, "which pods the drain has to move"},
	{"create", "pods/eviction", everywhere, "the drain"},
	{"get, list, create, delete", "leases.coordination.k8s.io", ownNamespace,
		"slots; the policy leaves its own to write"},
	{"get", "configmaps kured-agent-pools", ownNamespace,
		"how many of a pool may be away, and whether the fleet is paused"},
	{"create", "serviceaccounts/token agent", ownNamespace,
		"renewing its own token; the policy says for whom and how long"},
	{"create, patch", "events", inDefault, "telling what went wrong: events about Nodes are there"},
	{"create, patch", "events.events.k8s.io", inDefault, "the same, by its newer name"},
}

const (
	everywhere   = "every namespace"
	ownNamespace = "namespace `kured-agent`"
	inDefault    = "namespace `default`"
)

var update = flag.Bool("update", false, "rewrite docs/security.md")

const document = "../../docs/security.md"

// docs/security.md holds the two tables between their marks. Run `go test ./test/overstep -update` after a change.
func TestTheSecurityDocumentIsRenderedFromWhatIsTried(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, part := range []struct{ name, content string }{{"grants", renderGrants()}, {"oversteps", renderOversteps()}} {
		begin, end := "<!-- rendered: "+part.name+" -->\n", "<!-- end of "+part.name+" -->"
		before, rest, ok := strings.Cut(want, begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no place for the table: %q, %q", document, begin, end)
		}
		want = before + begin + "\n" + part.content + "\n" + end + after
	}
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatalf("%s differs from what is tried; run: go test ./test/overstep -update", document)
	}
	if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func renderGrants() string {
	var out strings.Builder
	out.WriteString("| may | of | where | for |\n|---|---|---|---|\n")
	for _, g := range grants {
		fmt.Fprintf(&out, "| %s | `%s` | %s | %s |\n", g.verbs, g.resource, g.where, g.why)
	}
	return out.String()
}

func renderOversteps() string {
	var out strings.Builder
	out.WriteString("| attempt | request | answer |\n|---|---|---|\n")
	for _, s := range sections {
		fmt.Fprintf(&out, "| **%s** | | |\n", s.title)
		for _, a := range s.attempts {
			answer := "RBAC: " + a.noRight()
			if a.because != "" {
				answer = a.because
			}
			if a.certificate != "" {
				answer += ". With a certificate: " + a.certificate
			}
			fmt.Fprintf(&out, "| %s | %s %s | %s |\n", a.what, a.verb, a.resource, answer)
		}
	}
	return out.String()
}

// noRight is what RBAC answers to those who lack the right.
func (a attempt) noRight() string { return fmt.Sprintf("cannot %s resource %q", a.verb, a.resource) }

func TestWhatIsTriedFitsIntoATable(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sections {
		for _, a := range s.attempts {
			for _, cell := range []string{a.what, a.because, a.certificate} {
				if strings.ContainsAny(cell, "|\n") || cell != strings.TrimSpace(cell) || strings.HasSuffix(cell, ".") {
					t.Errorf("%q is not one cell of a table", cell)
				}
			}
			if seen[a.what] {
				t.Errorf("%q twice", a.what)
			}
			seen[a.what] = true
		}
	}
}
