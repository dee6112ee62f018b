// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/text"
)

const wayApply = "kubectl apply -k packaging/kubernetes (on a node: /usr/share/kured-agent/kubernetes) gives the " +
	"ClusterRole and the Role \"kured-agent\" every right"

// ProofError lists everything that keeps the agent from working with this Node and this credential.
type ProofError struct {
	Problems []string // each names the object, and the way out unless that is Way
	Way      string   // out of every missing right; empty: none is missing
}

func (e *ProofError) Error() string { return strings.Join(e.Lines(), "; ") }

// Lines has one problem a line, and at the end the way out that they share.
func (e *ProofError) Lines() []string { return lines(e.Problems, e.Way) }

func lines(problems []string, way string) []string {
	if way == "" {
		return problems
	}
	return append(slices.Clip(problems), way)
}

// right is something the agent has to be allowed to do.
type right struct {
	Group, Resource, Subresource, Name, Verb string
	Lock                                     bool // in the namespace of the slots; else in the whole cluster
}

func (r right) String() string {
	what := r.Resource
	if r.Subresource != "" {
		what += "/" + r.Subresource
	}
	if r.Name != "" {
		what += fmt.Sprintf(" %q", r.Name)
	}
	return r.Verb + " " + what
}

// podRights are those that the kubelet of a node has itself, for the pods of this node.
var podRights = []right{{Resource: "pods", Verb: "list"}, {Resource: "pods", Subresource: "eviction", Verb: "create"}}

// rights is the whole of what packaging/kubernetes grants and the agent uses.
func (c *Client) rights() []right {
	rights := []right{
		{Resource: "nodes", Verb: "get"},
		{Resource: "nodes", Verb: "list"},
		{Resource: "nodes", Verb: "patch"},
		{Resource: "configmaps", Name: "kured-agent-pools", Verb: "get", Lock: true},
	}
	if !c.noPods {
		rights = append(rights, podRights...)
	}
	for _, verb := range []string{"get", "list", "create", "delete"} {
		rights = append(rights, right{Group: "coordination.k8s.io", Resource: "leases", Verb: verb, Lock: true})
	}
	if c.renews() {
		rights = append(rights,
			right{Resource: "serviceaccounts", Subresource: "token", Name: "agent", Verb: "create", Lock: true})
	}
	return rights
}

// renews says whether the credential is a token that the agent has to be able to renew.
func (c *Client) renews() bool {
	if c.bearer == nil {
		return false
	}
	t, _ := c.bearer.token()
	return c.notRenewed(t) == ""
}

// Prove asks the API server whether the Node exists, is this machine (machineID is /etc/machine-id) and may be handled
// with this credential. What cannot work comes as a *ProofError; any other error means that the server gave no answer.
func (c *Client) Prove(ctx context.Context, nodeName, machineID string) error {
	var proof ProofError
	node, problem, err := c.nodeInfo(ctx, nodeName)
	switch {
	case err != nil:
		return err
	case problem != "":
		proof.Problems = append(proof.Problems, problem)
		if node == nil && strings.HasPrefix(problem, "credential") {
			return &proof // every further question would get the same answer
		}
	}
	if node != nil {
		problem, note := sameMachine(nodeName, machineID, *node)
		if problem != "" {
			proof.Problems = append(proof.Problems, problem)
		}
		if note != "" {
			c.logger.Warn("Node accepted without proof that it is this machine", "node", nodeName, "why", note)
		}
	}
	missing, err := c.missingRights(ctx, nodeName)
	if err != nil {
		return err
	}
	for _, right := range missing {
		where := "anywhere in the cluster"
		if right.Lock {
			where = fmt.Sprintf("in namespace %q", c.namespace)
		}
		proof.Problems = append(proof.Problems, fmt.Sprintf("the agent may not %s %s", right, where))
		proof.Way = wayApply
	}
	if len(proof.Problems) > 0 {
		return &proof
	}
	return nil
}

type nodeInfo struct {
	MachineID  string `json:"machineID"`
	SystemUUID string `json:"systemUUID"`
}

func (c *Client) nodeInfo(ctx context.Context, name string) (info *nodeInfo, problem string, err error) {
	raw, err := api.Body(c.core.Get().Resource("nodes").Name(name).MaxRetries(0).Do(ctx))
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("Node %q does not exist: set [node] name to this machine's name in "+
			"\"kubectl get nodes\"", name), nil
	case apierrors.IsUnauthorized(err):
		status, _ := api.Refusal(err)
		return nil, text.Line(status.Message, maxRefusal), nil // of rejection
	case apierrors.IsForbidden(err):
		return nil, "", nil // the rights below say it better
	case err != nil:
		return nil, "", fmt.Errorf("getting Node %q: %w", name, err)
	}
	var node struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Status struct {
			NodeInfo nodeInfo `json:"nodeInfo"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &node); err != nil {
		return nil, "", fmt.Errorf("reading Node %q: %w", name, err)
	}
	if node.Metadata.Name != name {
		return nil, "", fmt.Errorf("reading Node %q: the answer is about %q", name, text.Line(node.Metadata.Name, maxText))
	}
	return &node.Status.NodeInfo, "", nil
}

// sameMachine guards against acting on somebody else's Node, which a cloned image or a wrong hostname would lead to.
func sameMachine(node, machineID string, info nodeInfo) (problem, note string) {
	here, id, uuid := plainID(machineID), plainID(info.MachineID), plainID(info.SystemUUID)
	switch {
	case id == "" && uuid == "":
		return "", "its kubelet reports neither machineID nor systemUUID"
	case here == "":
		return fmt.Sprintf("this machine has no id in /etc/machine-id, so nothing shows that Node %q is this machine: "+
			"systemd-machine-id-setup", node), ""
	case here == id || here == uuid:
		return "", ""
	}
	return fmt.Sprintf("Node %q is another machine (its machineID is %q, this machine's is %q): set [node] name to this "+
		"machine's name in \"kubectl get nodes\"", node, text.Line(info.MachineID, maxText), machineID), ""
}

func plainID(id string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimSpace(id), "-", ""))
}

// missingRights asks for the rules in one request per scope, and in single questions only about what they do not show:
// an authorizer may be unable to list its rules.
func (c *Client) missingRights(ctx context.Context, nodeName string) ([]right, error) {
	// A right for the whole cluster must show in a namespace that has nothing to do with the slots.
	wide, err := c.rules(ctx, "default")
	if err != nil {
		return nil, err
	}
	lock, err := c.rules(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	var missing []right
	for _, right := range c.rights() {
		rules := wide
		if right.Lock {
			rules = lock
		}
		if slices.ContainsFunc(rules, func(r rule) bool { return r.allows(right) }) {
			continue
		}
		allowed, err := c.may(ctx, right, nodeName)
		if err != nil {
			return nil, err
		}
		if !allowed {
			missing = append(missing, right)
		}
	}
	return missing, nil
}

type rule struct {
	Verbs         []string `json:"verbs"`
	APIGroups     []string `json:"apiGroups"`
	Resources     []string `json:"resources"`
	ResourceNames []string `json:"resourceNames"`
}

func (r rule) allows(want right) bool {
	resource := want.Resource
	if want.Subresource != "" {
		resource += "/" + want.Subresource
	}
	has := func(list []string, s string) bool { return slices.Contains(list, s) || slices.Contains(list, "*") }
	return has(r.Verbs, want.Verb) && has(r.APIGroups, want.Group) &&
		(has(r.Resources, resource) || slices.Contains(r.Resources, "*/"+want.Subresource)) &&
		(len(r.ResourceNames) == 0 || want.Name != "" && slices.Contains(r.ResourceNames, want.Name))
}

const reviews = "/apis/authorization.k8s.io/v1/"

func (c *Client) rules(ctx context.Context, namespace string) ([]rule, error) {
	var answer struct {
		Status struct {
			ResourceRules []rule `json:"resourceRules"`
		} `json:"status"`
	}
	err := c.review(ctx, "SelfSubjectRulesReview", map[string]any{"namespace": namespace}, &answer)
	if apierrors.IsForbidden(err) {
		return nil, nil // ask for each right
	}
	return answer.Status.ResourceRules, err
}

// may takes a right for given when nobody says: each call will say for itself what is missing.
func (c *Client) may(ctx context.Context, r right, nodeName string) (bool, error) {
	allowed, known, err := c.ask(ctx, r, nodeName)
	if err == nil && !known {
		c.logger.Warn("right accepted without proof", "right", r.String(), "why", "access reviews are not allowed")
		return true, nil
	}
	return allowed, err
}

// ask does not know when somebody removed system:basic-user. A right to nodes is asked for this Node; empty: for all.
func (c *Client) ask(ctx context.Context, r right, nodeName string) (allowed, known bool, err error) {
	attributes := map[string]any{"group": r.Group, "resource": r.Resource, "subresource": r.Subresource, "name": r.Name,
		"verb": r.Verb}
	if r.Lock {
		attributes["namespace"] = c.namespace
	}
	if r.Resource == "nodes" { // a role may be for this one Node only
		attributes["name"] = nodeName
	}
	var answer struct {
		Status struct {
			Allowed bool `json:"allowed"`
		} `json:"status"`
	}
	err = c.review(ctx, "SelfSubjectAccessReview", map[string]any{"resourceAttributes": attributes}, &answer)
	if apierrors.IsForbidden(err) {
		return false, false, nil
	}
	return answer.Status.Allowed, true, err
}

// review posts by hand: the group would be one more in the scheme for two requests at start.
func (c *Client) review(ctx context.Context, kind string, spec map[string]any, into any) error {
	body, err := json.Marshal(map[string]any{"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})
	if err != nil {
		return fmt.Errorf("building a %s: %w", kind, err)
	}
	path := reviews + strings.ToLower(kind) + "s"
	raw, err := api.Body(c.core.Post().AbsPath(path).MaxRetries(0).Body(body).Do(ctx))
	if err != nil {
		return fmt.Errorf("asking for our own rights: %w", err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("reading our own rights: %w", err)
	}
	return nil
}
