// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/text"
)

// verdict is what the answer to an eviction means for the drain.
type verdict int

const (
	accepted verdict = iota // the pod is going
	gone                    // the pod is no longer there, or another has its name
	budget                  // a PodDisruptionBudget allows no disruption now
	busy                    // the API server asks for less load
	doomed                  // its namespace is being deleted: it goes by itself
	refused                 // no further try can help
	unclear                 // no answer, or one that says nothing: try again
)

type outcome struct {
	Verdict verdict
	After   time.Duration // asked for by the server; zero: not
	Why     string
}

// judge reads the answer to an eviction or a deletion (nil is success).
func judge(err error) outcome {
	if err == nil {
		return outcome{Verdict: accepted}
	}
	status, answered := api.Refusal(err)
	if !answered {
		return outcome{Verdict: unclear, Why: text.Line(err.Error(), maxText)}
	}
	o := outcome{Verdict: unclear, Why: text.Line(status.Message, maxText)}
	if status.Details != nil {
		o.After = time.Duration(min(max(status.Details.RetryAfterSeconds, 0), 300)) * time.Second
	}
	disruption, isBudget := cause(status, policyv1.DisruptionBudgetCause)
	switch code := int(status.Code); {
	case isBudget && (code == http.StatusTooManyRequests || code == http.StatusForbidden):
		// 403 is "disruptions allowed is negative" and the like: the budget's controller is behind.
		o.Verdict = budget
		if disruption != "" {
			o.Why = text.Line(disruption, maxText)
		}
	case code == http.StatusNotFound, code == http.StatusConflict:
		// 409 is the UID precondition. Another conflict shows in the next list.
		o.Verdict = gone
	case code == http.StatusTooManyRequests:
		o.Verdict = busy
	case code == http.StatusForbidden:
		o.Verdict = refused
		if _, ok := cause(status, corev1.NamespaceTerminatingCause); ok {
			o.Verdict = doomed
		}
	case code == http.StatusInternalServerError && strings.Contains(status.Message, "more than one PodDisruptionBudget"):
		o.Verdict = refused
	case code == http.StatusUnprocessableEntity, code == http.StatusBadRequest, code == http.StatusMethodNotAllowed:
		o.Verdict = refused
	}
	return o
}

func cause(status metav1.Status, want metav1.CauseType) (message string, ok bool) {
	if status.Details == nil {
		return "", false
	}
	for _, c := range status.Details.Causes {
		if c.Type == want {
			return c.Message, true
		}
	}
	return "", false
}
