// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A list of 250 pods is about 2 MB; the bound keeps a broken or hostile server from filling the memory.
const maxResponse = 32 << 20

// line is the way of every request: it counts them, shows the API server the newest token, bounds the answers, learns
// from them what time it is, and says what a refused credential and a wrong clock mean.
type line struct {
	next   http.RoundTripper
	host   string
	client *Client
}

func (l *line) RoundTrip(request *http.Request) (*http.Response, error) {
	l.client.requests.Add(1)
	var used token
	// Nobody else is shown the token: not who the API server may redirect to.
	if b := l.client.bearer; b != nil && request.URL.Scheme == "https" && request.URL.Host == l.host {
		used, _ = b.token()
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+used.text)
	}
	response, err := l.next.RoundTrip(request)
	if err != nil {
		return response, clockAtFault(err, time.Now())
	}
	l.client.clock.note(response.Header.Get("Date"))
	response.Body = &bounded{ReadCloser: response.Body, left: maxResponse}
	if response.StatusCode == http.StatusUnauthorized {
		explain(response, l.client.rejection(used))
	}
	return response, nil
}

// WrappedRoundTripper lets CloseIdle find the transport below.
func (l *line) WrappedRoundTripper() http.RoundTripper { return l.next }

// explain puts a text in the place of the server's, which says "Unauthorized" and no more.
func explain(response *http.Response, message string) {
	_ = response.Body.Close()
	body, _ := json.Marshal(metav1.Status{ // has no field that can't be marshalled
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonUnauthorized, Code: http.StatusUnauthorized, Message: message,
	})
	response.Header.Set("Content-Type", "application/json")
	response.Header.Set("Content-Length", strconv.Itoa(len(body)))
	response.Header.Del("Content-Encoding")
	response.ContentLength = int64(len(body))
	response.Body = io.NopCloser(bytes.NewReader(body))
}

// clockAtFault adds what to do when a certificate is out of its time: on a host without a battery for its clock it is
// the host that is.
func clockAtFault(err error, now time.Time) error {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	if !ok || invalid.Reason != x509.Expired || invalid.Cert == nil {
		return err
	}
	return &ClockError{Err: err, NotBefore: invalid.Cert.NotBefore, NotAfter: invalid.Cert.NotAfter, Host: now}
}

// ClockError says that by this host's clock the certificate of the API server is not valid now.
type ClockError struct {
	Err                 error
	NotBefore, NotAfter time.Time
	Host                time.Time // the host's clock
}

func (e *ClockError) Error() string {
	return fmt.Sprintf("%v: the API server's certificate is valid from %s to %s, and this host's clock says %s: "+
		"if the clock is wrong, set it (timedatectl set-ntp true), else renew that certificate",
		e.Err, moment(e.NotBefore), moment(e.NotAfter), moment(e.Host))
}

func (e *ClockError) Unwrap() error { return e.Err }

func moment(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05 -0700") }

// clock is the API server's, as its newest answer told: what a token says about its time is meant by that one.
type clock struct {
	mu    sync.Mutex
	at    time.Time // when that answer came
	ahead time.Duration
}

// note takes the Date of an answer, to the second.
func (c *clock) note(date string) {
	theirs, err := http.ParseTime(date)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Now()
	c.ahead = theirs.Sub(c.at)
}

// now is the API server's time as far as that is known, else the host's.
func (c *clock) now() time.Time {
	ahead, _ := c.offset()
	return time.Now().Add(ahead)
}

// stepped is more than a clock that is only slewed gains on the monotonic one.
const stepped = time.Minute

// offset is how far the API server's clock is ahead of the host's. It is not known before the first answer, and not
// after somebody has set the host's clock, or the machine has slept.
func (c *clock) offset() (ahead time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		return 0, false
	}
	now := time.Now()
	monotonic, wall := now.Sub(c.at), now.Round(0).Sub(c.at.Round(0))
	if (wall - monotonic).Abs() > stepped {
		return 0, false
	}
	return c.ahead, true
}

var errTooLarge = fmt.Errorf("the answer of the API server is larger than %d MiB", maxResponse>>20)

type bounded struct {
	io.ReadCloser
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	if len(p) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= n
	return n, err
}
