// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/text"
)

// pod is the little that is read of one.
type pod struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Status struct {
		Phase      string `json:"phase"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

func (p pod) String() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

func (p pod) ended() bool { return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" }

func (p pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// listPods returns the pods of the selector on the node that have not ended, at most 50.
func listPods(ctx context.Context, core rest.Interface, node, selector string) ([]pod, error) {
	raw, err := api.Body(core.Get().Resource("pods").
		Param("fieldSelector", "spec.nodeName="+node+",status.phase!=Succeeded,status.phase!=Failed").
		Param("labelSelector", selector).Param("limit", "50").MaxRetries(0).Do(ctx))
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []pod `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("unreadable answer: %w", err)
	}
	kept := list.Items[:0]
	for _, p := range list.Items {
		if !p.ended() {
			kept = append(kept, p)
		}
	}
	return kept, nil
}

// Ready waits for pods that a node needs before it may take others, a network plugin for instance.
type Ready struct {
	core      rest.Interface
	node      string
	selectors []string
}

// NewReady returns the check for these label selectors. It sends nothing.
func NewReady(core rest.Interface, node string, selectors []string) *Ready {
	return &Ready{core: core, node: node, selectors: selectors}
}

// Missing says which pod is not there or not Ready, or nothing. A pod of every selector must be on the node: right
// after a boot an absent pod is one that has not come yet (kubereboot/kured#76).
func (r *Ready) Missing(ctx context.Context) (string, error) {
	for _, selector := range r.selectors {
		pods, err := listPods(ctx, r.core, r.node, selector)
		if err != nil {
			return "", fmt.Errorf("listing pods %q: %w", selector, err)
		}
		if len(pods) == 0 {
			return fmt.Sprintf("no pod %q is on this node", selector), nil
		}
		var names []string
		for _, p := range pods {
			if !p.ready() {
				names = append(names, p.String())
			}
		}
		if len(names) > 0 {
			return text.Line(fmt.Sprintf("pods %q are not Ready: %s", selector, strings.Join(names, ", ")), maxText), nil
		}
	}
	return "", nil
}
