// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kured-agent/kured-agent/internal/api"
	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	serviceAccount = "agent"

	// What the API server grants at least, and the admission policy at most.
	shortestLife = 10 * time.Minute
	longestLife  = 30 * 24 * time.Hour

	maxRefusal = 600 // of the server's words: the name and the message of an admission policy
)

// Kinds of credentials.
const (
	KindToken       = "token"
	KindCertificate = "client certificate"
	KindOther       = "password"
)

// Credential is what is known of the credential in use, without asking anybody.
type Credential struct {
	Kind    string
	Issued  time.Time // by the API server's clock, as Expires and Due; zero if not known
	Expires time.Time // zero: never, or not known
	Due     time.Time // when it is to be renewed; zero: not by the agent
	Renewed bool      // the agent got it itself
	Note    string    // why it is not renewed; empty when it is
	Trouble string    // what is wrong with it now, and what repairs that

	NodeName, NodeUID string // that it is bound to, by its own word; empty: to none

	now time.Time
}

// At is the same credential looked at at that time of the API server's clock.
func (c Credential) At(now time.Time) Credential {
	c.now = now
	return c
}

// DueIn is how long it is until the renewal, by the API server's clock as far as that is known.
func (c Credential) DueIn() time.Duration { return c.Due.Sub(c.now) }

// Lifetime is zero when it is not known.
func (c Credential) Lifetime() time.Duration {
	if c.Issued.IsZero() || c.Expires.IsZero() {
		return 0
	}
	return max(c.Expires.Sub(c.Issued), 0)
}

// used says whether that share of the lifetime is over.
func (c Credential) used(share float64) bool {
	lifetime := c.Lifetime()
	return lifetime > 0 && c.now.After(c.Issued.Add(time.Duration(share*float64(lifetime))))
}

// NearEnd says that four fifths of the lifetime are over: a renewal is long overdue.
func (c Credential) NearEnd() bool { return c.used(0.8) }

// Credential says what is known of the credential in use. It sends nothing.
func (c *Client) Credential() Credential {
	found := Credential{Kind: KindOther, now: c.clock.now()}
	var broken error
	if c.bearer != nil {
		var t token
		t, broken = c.bearer.token()
		found.Kind, found.Renewed = KindToken, c.bearer.renewed()
		found.NodeName, found.NodeUID = t.Kubernetes.Node.Name, t.Kubernetes.Node.UID
		found.Issued, found.Expires, found.Note = t.issued(), t.expires(), c.notRenewed(t)
		if found.Note == "" {
			found.Due = t.due()
			if c.renewAfter > 0 {
				found.Due = t.issued().Add(c.renewAfter)
			}
		}
	} else if cert := clientCertificate(c.config); cert != nil {
		found.Kind, found.Issued, found.Expires = KindCertificate, cert.NotBefore, cert.NotAfter
		if name, ours := strings.CutPrefix(cert.Subject.CommonName, agentUser); ours {
			found.NodeName = name
		}
		found.Note = "client certificates are renewed by who issues them"
	}
	found.Trouble = c.trouble(found, broken)
	return found
}

// BoundNode is the name of the Node that the credential is for, or empty when it does not say. Nobody has checked it: the
// API server does.
func (c *Client) BoundNode() string { return c.Credential().NodeName }

// Expires is when the credential ends, or zero when it does not say.
func (c *Client) Expires() time.Time { return c.Credential().Expires }

// notRenewed says why a token is not renewed by the agent, or nothing.
func (c *Client) notRenewed(t token) string {
	switch account := fmt.Sprintf("system:serviceaccount:%s:%s", c.namespace, serviceAccount); {
	case t.Subject == "":
		return "it is no token of a service account"
	case t.Subject != account:
		return fmt.Sprintf("it belongs to %q, not to %q", text.Line(t.Subject, maxText), account)
	case t.Kubernetes.Pod.Name != "":
		return "it is bound to a pod: who writes it renews it"
	case t.Kubernetes.Node.Name == "" || t.Kubernetes.Node.UID == "":
		return "it is not bound to a Node"
	case t.expires().IsZero():
		return "it never expires"
	case t.lifetime() == 0:
		return fmt.Sprintf("its dates make no sense (issued %s, expires %s)", moment(t.issued()), moment(t.expires()))
	}
	return ""
}

// hostOff is how wrong the host's clock may be before that is told.
const hostOff = 5 * time.Minute

func (c *Client) trouble(found Credential, broken error) string {
	ahead, _ := c.clock.offset()
	switch {
	case broken != nil:
		return text.Line(broken.Error(), maxRefusal)
	case !found.Expires.IsZero() && !found.now.Before(found.Expires):
		return fmt.Sprintf("the %s expired on %s: %s", found.Kind, moment(found.Expires), wayAgain(found.NodeName))
	case found.Note != "" && found.used(0.9): // who renews it otherwise is late; a kubelet renews at four fifths
		return fmt.Sprintf("the %s expires on %s, and %s: %s", found.Kind, moment(found.Expires), found.Note,
			wayAgain(found.NodeName))
	case ahead.Abs() > hostOff:
		return fmt.Sprintf("this host's clock is %s: set it (timedatectl set-ntp true)", offBy(ahead))
	}
	return ""
}

// offBy is coarse: a text that changes is told again.
func offBy(ahead time.Duration) string {
	word, by := "behind", ahead.Abs()
	if ahead < 0 {
		word = "ahead of"
	}
	number, unit := by.Round(5*time.Minute)/time.Minute, "minutes"
	switch {
	case by >= 48*time.Hour:
		number, unit = by.Round(24*time.Hour)/(24*time.Hour), "days"
	case by >= 2*time.Hour:
		number, unit = by.Round(time.Hour)/time.Hour, "hours"
	}
	return fmt.Sprintf("%d %s %s the API server's", number, unit, word)
}

// rejection says what a 401 to this token means, by the API server's own clock.
func (c *Client) rejection(used token) string {
	const so = "credential not accepted: "
	now, node := c.clock.now(), used.Kubernetes.Node
	switch {
	case c.kubelet:
		return so + "it is this host's kubelet's own: if the kubelet works, it has a newer one by now: " + wayNewer
	case used.gone(now):
		return so + fmt.Sprintf("its token expired on %s: %s", moment(used.expires()), wayAgain(node.Name))
	case used.issued().After(now.Add(hostOff)):
		return so + fmt.Sprintf("its token was issued on %s, and the API server's clock says %s: set the clock of the API "+
			"server", moment(used.issued()), moment(now))
	case node.Name != "":
		return so + fmt.Sprintf("its token is bound to Node %q with uid %q, which was deleted or created anew, or the "+
			"service account was: %s", text.Line(node.Name, maxText), text.Line(node.UID, maxText), wayAgain(node.Name))
	case used.text != "":
		return so + "its token is unknown, or was revoked: " + wayAgain("")
	}
	if cert := clientCertificate(c.config); cert != nil && !now.Before(cert.NotAfter) {
		return so + fmt.Sprintf("its client certificate expired on %s: %s", moment(cert.NotAfter), wayAgain(""))
	}
	return so + wayAgain("")
}

// RenewalError says why the credential was not renewed, with what repairs it.
type RenewalError struct {
	Why      string
	NoAnswer bool // of the API server: it may pass by itself
	Err      error
}

func (e *RenewalError) Error() string { return "renewing the credential: " + e.Why }

func (e *RenewalError) Unwrap() error { return e.Err }

// ErrNotKept says that a renewed token is in use, and will be lost with the process.
var ErrNotKept = errors.New("keeping the renewed token")

// Renew asks the API server for a token of the same identity and lifetime, uses it from then on and keeps it in the
// state directory. One attempt. Errors: a *RenewalError, or ErrNotKept.
func (c *Client) Renew(ctx context.Context) error {
	if c.bearer == nil {
		return &RenewalError{Why: "it is no token"}
	}
	present, _ := c.bearer.token()
	if why := c.notRenewed(present); why != "" {
		return &RenewalError{Why: why}
	}
	body, err := json.Marshal(tokenRequest(present))
	if err != nil {
		return &RenewalError{Why: err.Error(), Err: err}
	}
	raw, err := api.Body(c.core.Post().Namespace(c.namespace).Resource("serviceaccounts").Name(serviceAccount).
		SubResource("token").MaxRetries(0).Body(body).Do(ctx))
	if err != nil {
		return whyNotRenewed(err, present.Kubernetes.Node.Name)
	}
	next, err := readAnswer(raw, present)
	if err != nil {
		return &RenewalError{Why: err.Error(), Err: err}
	}
	if err := c.bearer.keep(next); err != nil {
		return fmt.Errorf("%w: %w", ErrNotKept, err)
	}
	return nil
}

// tokenRequest leaves the audiences to the server: it knows the ones it accepts.
func tokenRequest(present token) any {
	lifetime := min(max(present.lifetime(), shortestLife), longestLife)
	node := present.Kubernetes.Node
	return map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{
			"expirationSeconds": int64(lifetime / time.Second),
			"boundObjectRef":    map[string]any{"apiVersion": "v1", "kind": "Node", "name": node.Name, "uid": node.UID},
		},
	}
}

func readAnswer(raw []byte, present token) (token, error) {
	var answer struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return token{}, fmt.Errorf("reading the answer: %w", err)
	}
	next, err := readToken(answer.Status.Token)
	switch {
	case err != nil:
		return token{}, fmt.Errorf("reading the token in the answer: %w", err)
	case next.of() != present.of():
		return token{}, errors.New("the answer is a token of another identity")
	case next.issued().Before(present.issued()):
		return token{}, errors.New("the answer is a token that is older than the present one")
	}
	return next, nil
}

func whyNotRenewed(err error, node string) *RenewalError {
	e := &RenewalError{Err: err}
	status, answered := api.Refusal(err)
	message := text.Line(status.Message, maxRefusal)
	switch {
	case !answered:
		e.NoAnswer = true
		e.Why = "no answer of the API server: " + text.Line(err.Error(), maxRefusal)
		if clock, ok := errors.AsType[*ClockError](err); ok {
			e.NoAnswer, e.Why = false, text.Line(clock.Error(), maxRefusal)
		}
	case status.Code >= http.StatusInternalServerError || status.Code == http.StatusTooManyRequests:
		e.NoAnswer = true
		e.Why = "the API server could not do it: " + cmp.Or(message, err.Error())
	case apierrors.IsUnauthorized(err):
		e.Why = message // of rejection
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		e.Why = fmt.Sprintf("the Node or the service account was deleted or created anew (%s): %s", message, wayAgain(node))
	case strings.Contains(message, "ValidatingAdmissionPolicy") || apierrors.IsInvalid(err):
		e.Why = fmt.Sprintf("refused by an admission policy: %s: kubectl get validatingadmissionpolicies shows them, and %s",
			message, wayRules)
	case apierrors.IsForbidden(err):
		e.Why = fmt.Sprintf("refused: %s: %s", message, wayApply)
	default:
		e.Why = message
	}
	return e
}

const wayRules = "kubectl apply -k packaging/kubernetes restores ours"
