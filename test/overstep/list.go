// SPDX-License-Identifier: Apache-2.0

package overstep

import (
	"cmp"
	"fmt"
	"strings"
)

// Both Nodes exist.
const (
	Mine  = "worker-1" // whose agent's credential was stolen
	Yours = "worker-2" // holds slot-default-0 of one
)

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

// noRight is what RBAC answers to those who lack the right.
func (a attempt) noRight() string { return fmt.Sprintf("cannot %s resource %q", a.verb, a.resource) }

// answer is what the refusal to the agent's own token has to say.
func (a attempt) answer() string { return cmp.Or(a.because, a.noRight()) }

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
	patchNode("put our taint on another Node", Yours, ourTaint, notYours),
	patchNode("cordon another Node, with our marker", Yours, ourCordon, notYours),
	patchNode("change a label of another Node", Yours, `{"metadata":{"labels":{"a":"b"}}}`, notYours),
	patchNode("change an annotation of another Node, `kured-agent/hold`", Yours,
		`{"metadata":{"annotations":{"kured-agent/hold":"x"}}}`, notYours),
	{what: "change the status of another Node", verb: "patch", resource: "nodes/status", method: "PATCH",
		path: "/api/v1/nodes/worker-2/status", body: aStatus},
	patchNode("add a foreign taint to its own Node", Mine, foreign, ownKeyOnly),
	func() attempt {
		a := patchNode("take a foreign taint off its own Node", Mine, `{"spec":{"taints":null}}`, ownKeyOnly)
		a.given, a.after = "taint node worker-1 example.com/x:NoSchedule", "taint node worker-1 example.com/x-"
		return a
	}(),
	patchNode("give our taint the effect `NoExecute`", Mine, noExecute, "the kured-agent taint may not be NoExecute"),
	patchNode("cordon its own Node without our marker", Mine, `{"spec":{"unschedulable":true}}`, notOurs),
	humanCordon("lift the cordon of a human on its own Node", uncordon, notOurs),
	humanCordon("put our marker on the cordon of a human, to lift it afterwards", marker,
		"kured-agent may not put its marker on a cordon of somebody else"),
	patchNode("change a label of its own Node", Mine, `{"metadata":{"labels":{"a":"b"}}}`,
		"kured-agent may not change labels"),
	patchNode("set a foreign annotation of its own Node", Mine,
		`{"metadata":{"annotations":{"example.com/a":"b"}}}`, ownNotes),
	func() attempt {
		a := patchNode("remove a foreign annotation of its own Node", Mine,
			`{"metadata":{"annotations":{"example.com/a":null}}}`, ownNotes)
		a.given, a.after = "annotate node worker-1 example.com/a=b", "annotate node worker-1 example.com/a-"
		return a
	}(),
	patchNode("give its own Node another pod network", Mine,
		`{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`, "kured-agent may not change other spec fields"),
	patchNode("hold up the deletion of its own Node with a finalizer", Mine,
		`{"metadata":{"finalizers":["example.com/f"]}}`, noRefs),
	patchNode("tie its own Node to another one's life with an owner reference", Mine, adoptedNode, noRefs),
	{what: "change the status of its own Node", verb: "patch", resource: "nodes/status", method: "PATCH",
		path: "/api/v1/nodes/worker-1/status", body: aStatus},
	{what: "replace its own Node (PUT)", verb: "update", resource: "nodes", method: "PUT",
		path: "/api/v1/nodes/worker-1", body: strings.ReplaceAll(aNode, "worker-3", Mine)},
	{what: "create a Node", verb: "create", resource: "nodes", method: "POST", path: "/api/v1/nodes", body: aNode},
	{what: "create a Node by server-side apply", verb: "patch", resource: "nodes", method: "PATCH",
		path: "/api/v1/nodes/worker-3?fieldManager=x", body: aNode, kind: "application/apply-patch+yaml",
		because: `nodes "worker-3" is forbidden`}, // RBAC; before 1.31 in no more words
	{what: "delete its own Node", verb: "delete", resource: "nodes", method: "DELETE", path: "/api/v1/nodes/worker-1"},
	{what: "delete another Node", verb: "delete", resource: "nodes", method: "DELETE", path: "/api/v1/nodes/worker-2"},
	{what: "watch the Nodes", verb: "watch", resource: "nodes", method: "GET", path: "/api/v1/nodes?watch=true"},
}

func humanCordon(what, body, because string) attempt {
	a := patchNode(what, Mine, body, because)
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
	takeSlot("take a slot in another's name", slot, Yours, ownedByMine, "holderIdentity must be the agent's own node"),
	takeSlot("take a slot without an owner, which would outlive the Node", slot, Mine, "[]", notOwned),
	takeSlot("take a slot that another's Node owns", slot, Mine, owner(Yours, uidOfYours), notOwned),
	func() attempt {
		a := takeSlot("take a slot that an earlier Node of its name owns", slot, Mine, owner(Mine, uidOfOld), notOwned)
		a.certificate = "accepted: a certificate carries no uid. The garbage collector deletes such a slot at once"
		return a
	}(),
	takeSlot("take a slot beyond N", "slot-default-1", Mine, ownedByMine, `slot "slot-default-1" `+outsideOf),
	takeSlot("take a slot of a pool that is not listed", "slot-mine-0", Mine, ownedByMine,
		`slot "slot-mine-0" `+outsideOf),
	takeSlot("create a Lease that is no slot", "election", Mine, ownedByMine, `slot "election" `+outsideOf),
	func() attempt {
		a := takeSlot("take a slot while the fleet is paused", slot, Mine, ownedByMine, "the fleet is paused: freeze")
		const patch = "-n kured-agent patch configmap kured-agent-pools --type merge -p "
		a.given, a.after = patch+`{"data":{"paused":"freeze"}}`, patch+`{"data":{"paused":null}}`
		a.lags = true
		return a
	}(),
	func() attempt {
		a := takeSlot("take a second slot", slot, Mine, ownedByMine, "the node holds slot-spare-0 already")
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
	token("get a token for another Node", "agent", boundTo("Node", Yours, uidOfYours), ownToken),
	func() attempt {
		a := token("get a token for an earlier Node of its name", "agent", boundTo("Node", Mine, uidOfOld), ownToken)
		a.certificate = "does not match the UID in record"
		return a
	}(),
	token("get a token for a year", "agent", strings.Replace(boundTo("Node", Mine, uidOfMine), "3600", "31536000", 1),
		"a kured-agent token may live for at most 30 days (2592000 seconds)"),
	token("get a token that is bound to nothing", "agent", `"expirationSeconds":3600`, ownToken),
	token("get a token that is bound to a pod", "agent", boundTo("Pod", "theirs", uidOfOld), ownToken),
	token("get a token of another account", "default", boundTo("Node", Mine, uidOfMine), ""),
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
