package resourceserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	introspected   = 30 * time.Second // how long an answer is used
	introspectIn   = 2 * time.Second
	maxAsking      = 16       // introspections at a time; more wait
	maxIntrospeced = 64 << 10 // bytes of an answer
)

// introspector asks an issuer about tokens (RFC 7662).
type introspector struct {
	settings Settings
	client   *http.Client
	asking   chan struct{} // has an element for each introspection that runs
}

// ask returns the issuer's claims for an active token.
//
// Errors: Unauthenticated: the token is not active; Unavailable: the issuer does not
// answer.
func (i *introspector) ask(ctx context.Context, token string) (map[string]any, error) {
	silent := func(err error) error {
		return storage.Errorf(storage.Unavailable, "the identity provider cannot be asked about the token; try again in a while").Because(err)
	}
	ctx, cancel := context.WithTimeout(ctx, introspectIn)
	defer cancel()
	select {
	case i.asking <- struct{}{}:
		defer func() { <-i.asking }()
	case <-ctx.Done():
		return nil, silent(ctx.Err())
	}
	form := url.Values{"token": {token}, "token_type_hint": {"access_token"}}.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, i.settings.Introspection.Endpoint, strings.NewReader(form))
	if err != nil {
		return nil, silent(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	if id := i.settings.Introspection.ClientID; id != "" {
		r.SetBasicAuth(url.QueryEscape(id), url.QueryEscape(i.settings.ClientSecret))
	}
	status, body, err := do(i.client, r, maxIntrospeced)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("introspection was answered %d", status)
	}
	if err != nil {
		return nil, silent(err)
	}
	return activeClaims(body, i.settings.Issuer)
}

// activeClaims returns the claims in the issuer's answer, if the token is active.
func activeClaims(body []byte, issuer string) (map[string]any, error) {
	var claims map[string]any
	if err := json.Unmarshal(body, &claims); err != nil {
		return nil, storage.Errorf(storage.Unavailable, "the identity provider says nothing of the token that can be read; try again in a while").Because(err)
	}
	if claims["active"] != true {
		return nil, badToken("it has expired or was taken back")
	}
	if iss, there := claims["iss"]; there && iss != issuer {
		return nil, badToken("it is from another issuer")
	}
	return claims, nil
}
