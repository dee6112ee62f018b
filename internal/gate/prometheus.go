// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kured-agent/kured-agent/internal/files"
	"github.com/kured-agent/kured-agent/internal/text"
)

const (
	queryTimeout = 10 * time.Second
	maxAnswer    = 1 << 20
	maxFile      = 1 << 20

	// Alerts about the agent itself, "a reboot is required" first of all, must not keep it from rebooting.
	ownAlerts = "KuredAgent"
)

// check returns what blocks, or nothing.
func (p Prometheus) check(ctx context.Context) string {
	name := "prometheus"
	if u, err := url.Parse(p.URL); err == nil {
		name += " " + u.Redacted()
	}
	found, err := p.query(ctx)
	switch {
	case err != nil:
		return text.Line(fmt.Sprintf("%s: no answer: %v", name, err), maxText)
	case len(found) > 0:
		return text.Line(fmt.Sprintf("%s: %s", name, first(found, 3)), maxText)
	}
	return ""
}

// query asks once and returns what was found, ready to print.
func (p Prometheus) query(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	base, err := url.Parse(p.URL)
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, fmt.Errorf("%q is not an http or https URL", p.URL)
	}
	target := base.JoinPath("api/v1/query")
	target.RawQuery = url.Values{"query": {p.Query}, "timeout": {queryTimeout.String()}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	if p.TokenFile != "" {
		token, err := files.Read(p.TokenFile, maxFile)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	client, err := p.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err // the URL, with the whole query in it, is known to who reads this
		}
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("the answer is larger than 1 MiB: make the query narrower")
	}
	return evaluate(response.StatusCode, body)
}

func (p Prometheus) client() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.CAFile != "" {
		pem, err := files.Read(p.CAFile, maxFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading %q: no certificate in it", p.CAFile)
		}
	}
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: queryTimeout, ResponseHeaderTimeout: queryTimeout,
		},
		// The token is for the configured server. A login page behind a redirect is no answer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

type sample struct {
	Metric map[string]string `json:"metric"`
}

// evaluate says what an answer of the query API blocks with: every series of a vector or a matrix except alerts about
// the agent itself, a scalar other than zero, a string that is not empty. Anything else is an error, and so blocks.
func evaluate(code int, body []byte) ([]string, error) {
	var answer struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   struct {
			ResultType string          `json:"resultType"`
			Result     json.RawMessage `json:"result"`
		} `json:"data"`
	}
	err := json.Unmarshal(body, &answer)
	switch {
	case err == nil && answer.Status == "error":
		return nil, fmt.Errorf("HTTP %d: %s", code, answer.Error)
	case code != http.StatusOK:
		return nil, fmt.Errorf("HTTP %d", code)
	case err != nil:
		return nil, fmt.Errorf("not an answer of the Prometheus API: %w", err)
	case answer.Status != "success":
		return nil, fmt.Errorf("not an answer of the Prometheus API: status %q", answer.Status)
	}
	switch kind := answer.Data.ResultType; kind {
	case "vector", "matrix":
		var series []sample
		if err := json.Unmarshal(answer.Data.Result, &series); err != nil {
			return nil, fmt.Errorf("reading a %s: %w", kind, err)
		}
		if series == nil {
			return nil, fmt.Errorf("reading a %s: no result in the answer", kind)
		}
		return names(series), nil
	case "scalar", "string":
		var pair []json.RawMessage // [time, "value"]
		if err := json.Unmarshal(answer.Data.Result, &pair); err != nil || len(pair) != 2 {
			return nil, fmt.Errorf("reading a %s: not a pair of time and value", kind)
		}
		var value string
		if err := json.Unmarshal(pair[1], &value); err != nil {
			return nil, fmt.Errorf("reading a %s: %w", kind, err)
		}
		if kind == "string" && value == "" {
			return nil, nil
		}
		if number, err := strconv.ParseFloat(value, 64); kind == "scalar" && err == nil && number == 0 {
			return nil, nil
		}
		return []string{fmt.Sprintf("%s %q", kind, value)}, nil
	default:
		return nil, fmt.Errorf("unknown result type %q", kind)
	}
}

// names prints each series once: an alert by its name, another by its labels.
func names(series []sample) []string {
	var found []string
	for _, s := range series {
		alert := s.Metric["alertname"]
		if strings.HasPrefix(alert, ownAlerts) {
			continue
		}
		name := alert
		if alert == "" {
			name = labels(s.Metric)
		} else if instance := s.Metric["instance"]; instance != "" {
			name += " (" + instance + ")"
		}
		if !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

func labels(metric map[string]string) string {
	parts := make([]string, 0, len(metric))
	for key, value := range metric {
		if key != "__name__" {
			parts = append(parts, fmt.Sprintf("%s=%q", key, value))
		}
	}
	slices.Sort(parts)
	return text.Line(metric["__name__"]+"{"+strings.Join(parts, ",")+"}", maxText)
}
