package resourceserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	keysFresh   = 10 * time.Minute // the keys are fetched again at this age
	keysKept    = 24 * time.Hour   // the keys are used up to this age while a fetch fails
	fetchEvery  = 30 * time.Second // least time between two fetches, whatever tokens come
	fetchFirst  = 2 * time.Second  // replaces fetchEvery while there are no keys at all
	fetchWithin = 3 * time.Second  // time for metadata and keys together
	maxDocument = 256 << 10        // bytes of the metadata, and of the key set
)

// keySet holds the keys of one issuer. It fetches the keys when they are needed: a process that
// may be frozen between requests cannot renew them in the background.
type keySet struct {
	issuer string
	pinned string // URL of the keys from the settings, "" for none
	client *http.Client
	log    *slog.Logger

	mu      sync.Mutex
	keys    []key
	fetched time.Time     // when keys were last fetched without an error
	tried   time.Time     // when the last attempt began
	failure error         // error of the last attempt
	flight  chan struct{} // closed when the running attempt ends; nil if none runs
	uri     string        // URL of the keys from the issuer's metadata; "" if not known
}

// find returns the keys that may have signed a token, at most maxTried. id is "" for a
// token that names no key.
//
// Errors: Unauthenticated: the issuer has no such key; Unavailable: the issuer does not
// answer.
func (s *keySet) find(ctx context.Context, algorithm, id string) ([]key, error) {
	found, wait, fetch := s.look(algorithm, id)
	switch {
	case fetch:
		s.fetch(ctx, wait)
	case wait != nil && len(found) == 0:
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case len(found) > 0:
		return found, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found = s.matching(algorithm, id); len(found) > 0 {
		return found, nil
	}
	if s.failure != nil {
		return nil, storage.Errorf(storage.Unavailable, "the keys of the identity provider cannot be fetched; try again in a while").Because(s.failure)
	}
	return nil, badToken("the issuer has no key with the name that it gives")
}

// look returns the known keys. If fetch is true, the caller has to fetch the keys and close the
// channel wait. If fetch is false, another caller closes wait at the end of its attempt; wait is
// nil if there is no attempt.
func (s *keySet) look(algorithm, id string) (found []key, wait chan struct{}, fetch bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	found = s.matching(algorithm, id)
	every := fetchEvery
	if s.fetched.IsZero() {
		every = fetchFirst
	}
	wanted := len(found) == 0 || now.Sub(s.fetched) >= keysFresh
	if s.flight != nil || !wanted || now.Sub(s.tried) < every {
		return found, s.flight, false
	}
	s.tried, s.flight = now, make(chan struct{})
	return found, s.flight, true
}

// matching returns the known keys that fit. The caller holds mu.
func (s *keySet) matching(algorithm, id string) (found []key) {
	if time.Since(s.fetched) >= keysKept {
		return nil
	}
	for _, k := range s.keys {
		if k.fits(algorithm, id) && len(found) < maxTried {
			found = append(found, k)
		}
	}
	return found
}

// fetch gets the keys, and then closes done. It goes on after its caller has gone, because other
// callers wait for done.
func (s *keySet) fetch(ctx context.Context, done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchWithin)
	defer cancel()
	begun := time.Now()
	s.mu.Lock()
	uri := s.uri
	s.mu.Unlock()
	keys, uri, err := s.get(ctx, uri)
	s.mu.Lock()
	s.failure, s.flight, s.uri = err, nil, uri
	if err == nil {
		s.keys, s.fetched = keys, begun
	}
	s.mu.Unlock()
	close(done)
	if err != nil {
		s.log.WarnContext(ctx, "keys of the identity provider cannot be fetched", "issuer", s.issuer, "error", err)
	}
}

// get fetches the keys and returns their URL. If uri is "", get finds the URL first. After an error
// it returns "", so that the next attempt finds the URL anew.
func (s *keySet) get(ctx context.Context, uri string) ([]key, string, error) {
	if uri == "" {
		uri = s.pinned
	}
	if uri == "" {
		var err error
		if uri, err = s.discover(ctx); err != nil {
			return nil, "", err
		}
	}
	status, document, err := ask(ctx, s.client, uri)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answered %d", uri, status)
	}
	var keys []key
	if err == nil {
		keys, err = parseKeys(document)
	}
	if err == nil && len(keys) == 0 {
		err = fmt.Errorf("%s has no key that can be used", uri)
	}
	if err != nil {
		return nil, "", err
	}
	return keys, uri, nil
}

// discover reads the issuer's metadata (RFC 8414 §3, OpenID Connect Discovery §4), and
// returns the URL of its keys.
func (s *keySet) discover(ctx context.Context) (string, error) {
	for _, address := range metadataURLs(s.issuer) {
		status, document, err := ask(ctx, s.client, address)
		if err != nil {
			return "", err
		}
		if status >= http.StatusBadRequest && status < http.StatusInternalServerError {
			continue
		}
		if status != http.StatusOK {
			return "", fmt.Errorf("%s answered %d", address, status)
		}
		return keysOf(s.issuer, document)
	}
	return "", fmt.Errorf("issuer %s has no metadata; check the spelling of the issuer, or set jwks_uri", s.issuer)
}

func keysOf(issuer string, document []byte) (uri string, err error) {
	var metadata struct {
		Issuer string `json:"issuer"`
		JWKS   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(document, &metadata); err != nil {
		return "", fmt.Errorf("the issuer's metadata is not JSON: %w", err)
	}
	if metadata.Issuer != issuer {
		return "", fmt.Errorf("the metadata is that of issuer %.200q, not of %s; write the issuer as the metadata does", metadata.Issuer, issuer)
	}
	if _, err := webURL(metadata.JWKS); err != nil {
		return "", fmt.Errorf("jwks_uri of the metadata: %w", err)
	}
	return metadata.JWKS, nil
}

// metadataURLs returns the possible URLs of an issuer's metadata, in the order to try.
func metadataURLs(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil
	}
	host, path := u.Scheme+"://"+u.Host, strings.TrimSuffix(u.EscapedPath(), "/")
	all := []string{host + "/.well-known/oauth-authorization-server" + path, host + "/.well-known/openid-configuration" + path}
	if path != "" {
		all = append(all, host+path+"/.well-known/openid-configuration")
	}
	return all
}

// ask gets a document of at most maxDocument bytes.
func ask(ctx context.Context, client *http.Client, address string) (status int, document []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Accept", "application/json")
	return do(client, r, maxDocument)
}

// do sends a request and reads the answer. An answer of more than limit bytes is an error.
func do(client *http.Client, r *http.Request, limit int64) (status int, body []byte, err error) {
	res, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }() // nothing was written through it
	body, err = io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("%s answered more than %d bytes", r.URL.Redacted(), limit)
	}
	return res.StatusCode, body, err
}

// newClient returns a client that follows redirects within a host only.
func newClient() *http.Client {
	return &http.Client{CheckRedirect: sameHost}
}

func sameHost(r *http.Request, via []*http.Request) error {
	if first := via[0].URL; len(via) > 3 || r.URL.Host != first.Host || r.URL.Scheme != first.Scheme {
		return errors.New("it redirects to another host, or more often than is followed")
	}
	return nil
}
