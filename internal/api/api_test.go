// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/kube/kubetest"
)

func TestABodyComesAsItWasSent(t *testing.T) {
	t.Parallel()
	const sent = `{"kind":"Node", "unknown":{}}`
	k, _ := kubetest.Server(t,
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { kubetest.JSON(w, 200, sent) }))
	got, err := api.Body(k.Core().Get().Resource("nodes").Name("n").Do(t.Context()))
	if err != nil || string(got) != sent {
		t.Errorf("%q, %v", got, err)
	}
}

func TestARefusalKeepsItsReasonAndMessage(t *testing.T) {
	t.Parallel()
	k, _ := kubetest.Server(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		kubetest.Status(w, http.StatusForbidden, "Forbidden", "only your own Node", map[string]any{"retryAfterSeconds": 7})
	}))
	_, err := api.Body(k.Core().Get().Resource("nodes").Name("n").Do(t.Context()))
	if !apierrors.IsForbidden(err) || err.Error() != "only your own Node" {
		t.Errorf("got %v", err)
	}
	status, ok := api.Refusal(fmt.Errorf("getting a Node: %w", err))
	if !ok || status.Code != http.StatusForbidden || status.Reason != metav1.StatusReasonForbidden ||
		status.Details == nil || status.Details.RetryAfterSeconds != 7 {
		t.Errorf("%v: %+v", ok, status)
	}
}

func TestNoAnswerIsNoRefusal(t *testing.T) {
	t.Parallel()
	k, _ := kubetest.Server(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	_, err := api.Body(k.Core().Get().Resource("nodes").Name("n").MaxRetries(0).Do(t.Context()))
	if err == nil {
		t.Fatal("no error")
	}
	if status, ok := api.Refusal(err); ok {
		t.Errorf("%v is taken for %+v", err, status)
	}
	if _, ok := api.Refusal(nil); ok {
		t.Error("success is taken for a refusal")
	}
}
