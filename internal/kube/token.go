// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kured-agent/kured-agent/internal/files"
)

const (
	tokenName = "token" // in the state directory
	maxToken  = 64 << 10
)

// claims is what a token says about itself. Nothing of it is verified: the server does that.
type claims struct {
	Issuer     string      `json:"iss"`
	Subject    string      `json:"sub"`
	Issued     numericDate `json:"iat"`
	Expires    numericDate `json:"exp"`
	Kubernetes struct {
		Node reference `json:"node"`
		Pod  reference `json:"pod"`
	} `json:"kubernetes.io"`
}

type reference struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// numericDate is in seconds since 1970.
type numericDate float64

// time is zero for what is no date.
func (d numericDate) time() time.Time {
	const latest = 253402300799 // the last second of the year 9999
	if !(d > 0 && d <= latest) {
		return time.Time{}
	}
	return time.Unix(int64(d), 0)
}

// bearerOf is what stays when a token is renewed.
type bearerOf struct {
	issuer, subject string
	node            reference
}

func (c claims) of() bearerOf { return bearerOf{c.Issuer, c.Subject, c.Kubernetes.Node} }

func (c claims) issued() time.Time  { return c.Issued.time() }
func (c claims) expires() time.Time { return c.Expires.time() }

// lifetime is zero when the dates make no sense.
func (c claims) lifetime() time.Duration {
	if c.issued().IsZero() || c.expires().IsZero() {
		return 0
	}
	return max(c.expires().Sub(c.issued()), 0)
}

// due is at half of the lifetime, and up to a twentieth of it earlier or later by the uid of the Node: nodes that were
// enrolled in one go must not come back in one go.
func (c claims) due() time.Time {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(c.Kubernetes.Node.UID))
	share := 0.45 + 0.1*float64(hash.Sum32())/math.MaxUint32
	return c.issued().Add(time.Duration(share * float64(c.lifetime())))
}

// token is a bearer token and its claims; without any when it is none that we can read.
type token struct {
	text string
	claims
}

// readToken takes the content of a file. An error does not show it.
func readToken(content string) (token, error) {
	t := token{text: strings.TrimSpace(content)}
	switch {
	case t.text == "":
		return token{}, errors.New("it is empty")
	case len(t.text) > maxToken:
		return token{}, fmt.Errorf("it is larger than %d KiB", maxToken>>10)
	case strings.ContainsFunc(t.text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return token{}, errors.New("it is no token: it has white space or other characters in it that a token has not")
	}
	t.claims = readClaims(t.text)
	return t, nil
}

func readClaims(text string) claims {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return claims{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return claims{}
	}
	var c claims
	if json.Unmarshal(payload, &c) != nil || c.Subject == "" {
		return claims{}
	}
	return c
}

// bearer holds the token in use: the one of the kubeconfig, or the one that the agent got in its place and keeps in its
// state directory. Of two tokens of the same identity the one that was issued later counts: so a kubeconfig that a
// configuration management puts back as it was undoes no renewal, and a new enrolment always counts.
type bearer struct {
	clock *clock
	path  string // of our own; empty: none is kept

	mu         sync.Mutex
	given, own *source
	held       token // renewed, whether or not it could be kept
}

// newBearer is nil when the kubeconfig has no token.
func newBearer(o Options, config *rest.Config, from origin, clock *clock) (*bearer, error) {
	if config.BearerToken == "" && config.BearerTokenFile == "" {
		return nil, nil
	}
	b := &bearer{clock: clock, given: given(config, from), own: &source{}}
	if o.State != "" {
		b.path = filepath.Join(o.State, tokenName)
		b.own = own(b.path)
	}
	b.given.look()
	b.own.look()
	if err := b.given.err; err != nil {
		return nil, err
	}
	if errors.Is(b.own.err, files.ErrForeign) {
		return nil, &RefusedError{Path: o.Kubeconfig, Problems: []string{
			"its renewed token is not safe: " + b.own.err.Error() + ", or remove it and " + wayAgain("")}}
	}
	return b, nil
}

// given is the token of the kubeconfig. An inline one is found again when somebody enrols the node anew.
func given(config *rest.Config, from origin) *source {
	path := from.path
	if tokenFile := config.BearerTokenFile; tokenFile != "" { // wins over the inline token, as in client-go
		return &source{path: tokenFile, lasts: true, read: func() (string, error) {
			if problem := exposedSecret(tokenFile, from.owners); problem != "" {
				return "", &RefusedError{Path: path, Problems: []string{problem}}
			}
			content, err := files.Read(tokenFile, maxToken)
			return string(content), err
		}}
	}
	host, ca, caFile := config.Host, string(config.CAData), config.CAFile
	return &source{path: path, lasts: true, read: func() (string, error) {
		now, err := load(from)
		switch {
		case err != nil:
			return "", err
		case now.Host != host || string(now.CAData) != ca || now.CAFile != caFile ||
			now.BearerToken == "" || now.BearerTokenFile != "":
			return "", errors.New("it names another server, or has another kind of credential: systemctl reload kured-agent")
		}
		return now.BearerToken, nil
	}}
}

// own is the renewed token. None is no error.
func own(path string) *source {
	return &source{path: path, read: func() (string, error) {
		content, err := files.ReadOwn(path, maxToken, files.SeenByOthers)
		return string(content), err
	}}
}

// token is the one in use, and what is wrong with the files that it may come from.
func (b *bearer) token() (token, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.given.look()
	b.own.look()
	now := b.clock.now()
	best := newer(b.given.token, b.own.token, now)
	return newer(best, b.held, now), errors.Join(b.given.err, b.own.err)
}

// renewed says whether the token in use is one that the agent got itself.
func (b *bearer) renewed() bool {
	t, _ := b.token()
	b.mu.Lock()
	defer b.mu.Unlock()
	return t.text != b.given.token.text
}

// keep uses t from now on. An error means that it will be lost with the process.
func (b *bearer) keep(t token) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = t
	if b.path == "" {
		return nil
	}
	return files.ReplaceDurably(b.path, 0o600, []byte(t.text+"\n"))
}

// newer is first, or second if that is of the same identity and not issued earlier (dates are in seconds). One that has
// expired never counts when the other has not: a server may grant less and less.
func newer(first, second token, now time.Time) token {
	if second.text == "" || second.Subject == "" || second.of() != first.of() {
		return first
	}
	if gone, too := first.gone(now), second.gone(now); gone != too {
		if gone {
			return second
		}
		return first
	}
	if second.issued().Before(first.issued()) {
		return first
	}
	return second
}

func (c claims) gone(now time.Time) bool { return !c.expires().IsZero() && !now.Before(c.expires()) }

// source is a file with a token in it, read again when it has changed.
type source struct {
	path  string
	read  func() (string, error)
	lasts bool // what it held counts while it can't be read

	seen  stamp
	token token
	err   error
}

// look costs one look at the directory entry while nothing changes.
func (s *source) look() {
	if s.read == nil {
		return
	}
	now := stampOf(s.path)
	if now == s.seen {
		return
	}
	s.seen = now // from before the reading: a change meanwhile is seen the next time
	if now == absent && !s.lasts {
		s.token, s.err = token{}, nil
		return
	}
	content, err := s.read()
	var found token
	if err == nil {
		if found, err = readToken(content); err != nil {
			err = fmt.Errorf("reading the token in %q: %w", s.path, err)
		}
	}
	s.err = err
	if err == nil || !s.lasts {
		s.token = found
	}
}

// stamp changes with a file, its owner and its mode.
type stamp struct {
	looked     bool
	dev, inode uint64
	size       int64
	changed    syscall.Timespec
}

var absent = stamp{looked: true}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return absent
	}
	stat, ok := (*syscall.Stat_t)(nil), false
	if err == nil {
		stat, ok = info.Sys().(*syscall.Stat_t)
	}
	if !ok {
		return stamp{looked: true, size: -1}
	}
	return stamp{true, stat.Dev, stat.Ino, info.Size(), stat.Ctim}
}
