// SPDX-License-Identifier: Apache-2.0

package overstep

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/test/cluster"
)

// Stage is a cluster on which there is all that the list speaks of.
type Stage struct {
	*cluster.Cluster
	uids *strings.Replacer
}

// NewStage makes what is missing beside the Nodes Mine and Yours: a pod on each, and the slot of Yours.
func NewStage(ctx context.Context, c *cluster.Cluster) (*Stage, error) {
	s := &Stage{c, strings.NewReplacer(uidOfMine, string(c.Node(Mine).UID), uidOfYours, string(c.Node(Yours).UID))}
	s.Pod(Mine, "ours", cluster.PodOptions{})
	s.Pod(Yours, "theirs", cluster.PodOptions{})
	lease := takeSlot("", "slot-default-0", Yours, owner(Yours, uidOfYours), "")
	return s, s.Do(ctx, lease.method, lease.path, []byte(s.uids.Replace(lease.body)), nil)
}

// Clear takes away what a stage has beside the Nodes.
func (s *Stage) Clear() {
	_, _ = s.Kubectl("delete", "pods", "ours", "theirs", "--force", "--grace-period=0", "--ignore-not-found")
	_, _ = s.Kubectl("-n", "kured-agent", "delete", "lease", "slot-default-0", "--ignore-not-found")
	for _, section := range sections {
		if section.optional != "" {
			_, _ = s.Kubectl("delete", "--ignore-not-found", "-f", manifest(section.optional))
		}
	}
}

// Client sends requests with a token.
func (s *Stage) Client(token string) (*http.Client, error) {
	client, err := rest.HTTPClientFor(s.bearer(token))
	if err == nil {
		client.Timeout = requestBound
	}
	return client, err
}

func (s *Stage) bearer(token string) *rest.Config {
	config := rest.AnonymousClientConfig(s.AdminConfig())
	config.BearerToken = token
	return config
}

const requestBound = 15 * time.Second

// TryAll tries the whole list with the token of the agent of Mine. It returns how much that was, and what was not
// refused in the words of the list.
func (s *Stage) TryAll(ctx context.Context, client *http.Client) (tried int, wrong []error) {
	for _, section := range sections {
		if section.optional != "" {
			s.apply(ctx, section, client, section.attempts[0].answer())
		}
		for _, a := range section.attempts {
			s.admin(a.given)
			if err := s.refused(ctx, client, a, a.answer()); err != nil {
				wrong = append(wrong, err)
			}
			s.admin(a.after)
			tried++
		}
	}
	return tried, wrong
}

// apply applies the optional manifest of a section and waits until the client is refused with these words.
func (s *Stage) apply(ctx context.Context, section section, client *http.Client, words string) {
	s.MustKubectl("apply", "-f", manifest(section.optional))
	s.Eventually(section.optional+" is enforced", 20*time.Second, func() bool {
		_, answer, _ := s.send(ctx, client, section.attempts[0], true)
		return strings.Contains(answer, words)
	})
}

func manifest(name string) string {
	root, err := cluster.ModuleRoot()
	if err != nil {
		return name // kubectl says that it is not there
	}
	return filepath.Join(root, "packaging", "kubernetes", name)
}

// admin runs the words of an attempt with kubectl, unless there are none; SPARE is a file with a slot of ours.
func (s *Stage) admin(words string) {
	if words == "" {
		return
	}
	if strings.Contains(words, "SPARE") {
		spare := filepath.Join(s.Dir(), "spare.json")
		text := s.uids.Replace(takeSlot("", "slot-spare-0", Mine, ownedByMine, "").body)
		text = strings.Replace(text, `"name":"slot`, `"namespace":"kured-agent","name":"slot`, 1)
		_ = os.WriteFile(spare, []byte(text), 0o600) // without it kubectl fails
		words = strings.ReplaceAll(words, "SPARE", spare)
	}
	s.MustKubectl(strings.Fields(words)...)
}

// refused makes one attempt for real, or without effect as long as the policy has not heard of what was prepared.
func (s *Stage) refused(ctx context.Context, client *http.Client, a attempt, words string) error {
	if a.lags {
		s.Eventually(a.what+" is refused: "+words, 20*time.Second, func() bool {
			_, answer, _ := s.send(ctx, client, a, true)
			return strings.Contains(answer, words)
		})
	}
	code, answer, err := s.send(ctx, client, a, false)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", a.what, err)
	case !refusal[code] || !strings.Contains(answer, words):
		return fmt.Errorf("%s: %d %.500s, want %q", a.what, code, answer, words)
	}
	return nil
}

// refusal has 409 for a token with the uid of another Node, and 400 for one that the API server can't make.
var refusal = map[int]bool{http.StatusForbidden: true, http.StatusConflict: true, http.StatusBadRequest: true}

func (s *Stage) send(ctx context.Context, client *http.Client, a attempt, dry bool) (int, string, error) {
	path := a.path
	if dry {
		path += "?dryRun=All"
	}
	kind := cmp.Or(a.kind, cluster.MergePatch)
	if a.method != http.MethodPatch {
		kind = "application/json"
	}
	return send(ctx, client, a.method, s.URL()+path, kind, s.uids.Replace(a.body))
}

// send returns the status and, when it is not 2xx, the message that a reader sees.
func send(
	ctx context.Context, client *http.Client, method, url, kind, body string,
) (code int, answer string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", kind)
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	var status struct{ Message string }
	if json.Unmarshal(raw, &status) == nil && status.Message != "" {
		raw = []byte(status.Message)
	}
	return response.StatusCode, string(bytes.TrimSpace(raw)), err
}

// Renew asks for another token of the agent of Mine, as the agent does.
func (s *Stage) Renew(ctx context.Context, client *http.Client) (raw string, err error) {
	renewal := token("", "agent", boundTo("Node", Mine, uidOfMine), "")
	code, answer, err := s.send(ctx, client, renewal, false)
	var request struct{ Status struct{ Token string } }
	if err == nil {
		err = json.Unmarshal([]byte(answer), &request)
	}
	if err != nil || code != http.StatusCreated {
		return "", fmt.Errorf("renewing a token: %d %s: %w", code, answer, err)
	}
	return request.Status.Token, nil
}
