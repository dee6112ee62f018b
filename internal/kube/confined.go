// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	wayPolicies = "kubectl apply -k packaging/kubernetes installs the admission policies that confine each credential to " +
		"its Node (Kubernetes 1.30 or newer)"
	wayConfined = "\"kubectl kured enroll NODE\" makes a credential that may do none of this"
)

// everything is what only an admin may do.
var everything = right{Group: "*", Resource: "*", Verb: "*"}

// excess is what no agent needs, and a thief could use.
var excess = []right{
	{Resource: "secrets", Verb: "list"},
	{Resource: "pods", Verb: "create"},
	{Resource: "nodes", Verb: "update"},
	{Resource: "nodes", Verb: "delete"},
	{Resource: "nodes", Subresource: "status", Verb: "patch"},
	{Resource: "serviceaccounts", Subresource: "token", Verb: "create"},
	{Group: "apps", Resource: "daemonsets", Verb: "patch"},
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings", Verb: "create"},
	{Resource: "users", Verb: "impersonate"},
}

// Username is who the API server takes this credential for. A kubelet comes as a *RefusedError: not every credential of
// one shows that by itself.
func (c *Client) Username(ctx context.Context) (string, error) {
	const path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	body := []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	raw, err := api.Body(c.core.Post().AbsPath(path).MaxRetries(0).Body(body).Do(ctx))
	switch {
	case apierrors.IsUnauthorized(err):
		return "", &ProofError{Problems: []string{"credential not accepted (expired, or the Node was deleted and created anew)"},
			Way: wayAgain(c.BoundNode())}
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err): // since Kubernetes 1.28, for everybody unless taken away
		return "", nil
	case err != nil:
		return "", fmt.Errorf("asking who we are: %w", err)
	}
	var answer struct {
		Status struct {
			UserInfo struct {
				Username string `json:"username"`
			} `json:"userInfo"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return "", fmt.Errorf("reading who we are: %w", err)
	}
	name := text.Line(answer.Status.UserInfo.Username, maxText)
	if strings.HasPrefix(name, nodeUser) {
		return "", &RefusedError{Problems: []string{kubeletProblem(name)}, Way: wayEnrol}
	}
	return name, nil
}

// ProveAdmitted asks whether the admission policies let the credential change its own Node. Nothing is changed. What
// they refuse comes as a *ProofError.
func (c *Client) ProveAdmitted(ctx context.Context, nodeName string) error {
	refusal, err := c.tryPatch(ctx, nodeName)
	if err != nil {
		return fmt.Errorf("trying to patch Node %q: %w", nodeName, err)
	}
	if refusal != "" {
		return &ProofError{
			Problems: []string{fmt.Sprintf("the cluster does not let it change Node %q: %s", nodeName, refusal)},
			Way:      wayAgain(nodeName),
		}
	}
	return nil
}

// ProveConfined asks whether the credential may do what no agent needs, and whether it may change the Node of another.
// Nothing is changed. What it may comes as a *ProofError.
func (c *Client) ProveConfined(ctx context.Context, nodeName string) error {
	all, _, err := c.ask(ctx, everything, "")
	if err != nil {
		return err
	}
	if all {
		return &ProofError{Problems: []string{"the credential may do everything in the cluster"}, Way: wayConfined}
	}
	var proof ProofError
	for _, right := range excess {
		allowed, _, err := c.ask(ctx, right, "")
		if err != nil {
			return err
		}
		if allowed {
			proof.Problems = append(proof.Problems, fmt.Sprintf("the credential may %s in the whole cluster", right))
			proof.Way = wayConfined
		}
	}
	other, err := c.anotherNode(ctx, nodeName)
	if err != nil || other == "" { // nobody to be confined from
		return proof.orNil(err)
	}
	refusal, err := c.tryPatch(ctx, other)
	switch {
	case err != nil:
		return fmt.Errorf("trying to patch Node %q: %w", other, err)
	case refusal == "":
		proof.Problems = append(proof.Problems, fmt.Sprintf("the credential may change another Node, %q: %s", other, wayPolicies))
	}
	return proof.orNil(nil)
}

func (e *ProofError) orNil(err error) error {
	if err != nil || len(e.Problems) == 0 {
		return err
	}
	return e
}

// tryPatch is a patch that changes nothing, twice: its annotation is nowhere, and it is a dry run.
func (c *Client) tryPatch(ctx context.Context, name string) (refusal string, err error) {
	err = c.core.Patch(types.MergePatchType).Resource("nodes").Name(name).Param("dryRun", "All").
		Param("fieldManager", "kured-agent").MaxRetries(0).
		Body([]byte(`{"metadata":{"annotations":{"kured-agent/enrolled":null}}}`)).Do(ctx).Error()
	if apierrors.IsForbidden(err) {
		return text.Line(err.Error(), maxText), nil
	}
	return "", err
}

// anotherNode names a Node that is not ours, or none.
func (c *Client) anotherNode(ctx context.Context, own string) (string, error) {
	raw, err := api.Body(c.core.Get().Resource("nodes").Param("limit", strconv.Itoa(2)).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").MaxRetries(0).Do(ctx))
	if err != nil {
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		} `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return "", fmt.Errorf("reading the list of nodes: %w", err)
	}
	for _, item := range list.Items {
		if item.Metadata.Name != own {
			return item.Metadata.Name, nil
		}
	}
	return "", nil
}
