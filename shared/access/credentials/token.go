package credentials

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

type token struct {
	Value   string
	Refresh string
	Until   time.Time // when Value ends; zero if it does not end by itself
}

// maxAnswer bounds the answer of a token endpoint, in bytes.
const maxAnswer = 64 << 10

func (v *Vault) redeem(ctx context.Context, p Provider, code, verifier, redirect string) (token, error) {
	return v.ask(ctx, p, p.of(url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "code_verifier": {verifier}, "redirect_uri": {redirect},
	}))
}

// of adds the parameter resource, which says what the token is for, to a form.
func (p Provider) of(form url.Values) url.Values {
	if p.Resource != "" {
		form.Set("resource", p.Resource)
	}
	return form
}

// ask sends a form to the token endpoint of a third party. No error repeats anything that was sent.
//
// Errors: Unauthenticated if the third party refuses, Unavailable otherwise.
func (v *Vault) ask(ctx context.Context, p Provider, form url.Values) (token, error) {
	if p.Auth != "basic" {
		form.Set("client_id", p.ClientID)
		if p.ClientSecret != "" {
			form.Set("client_secret", p.ClientSecret)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Token, strings.NewReader(form.Encode()))
	if err != nil {
		return token{}, storage.Errorf(storage.Unavailable, "the token endpoint cannot be asked").Because(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Accept", "application/json")
	if p.Auth == "basic" {
		r.SetBasicAuth(url.QueryEscape(p.ClientID), url.QueryEscape(p.ClientSecret))
	}
	res, err := v.config.Client.Do(r)
	if err != nil {
		return token{}, storage.Errorf(storage.Unavailable, "the token endpoint does not answer").Because(err)
	}
	defer func() { _ = res.Body.Close() }() // nothing was written through it
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return token{}, storage.Errorf(storage.Unavailable, "the token endpoint does not answer").Because(err)
	}
	return readAnswer(res.StatusCode, body, time.Now())
}

func readAnswer(status int, body []byte, now time.Time) (token, error) {
	var a struct {
		Access  string      `json:"access_token"`
		Refresh string      `json:"refresh_token"`
		Expires json.Number `json:"expires_in"`
		Error   string      `json:"error"`
	}
	err := json.Unmarshal(body, &a)
	switch {
	case a.Error == "temporarily_unavailable", a.Error == "slow_down", status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= http.StatusInternalServerError:
		return token{}, storage.Errorf(storage.Unavailable, "the token endpoint cannot answer now").Because(fmt.Errorf("status %d", status))
	case a.Error != "", status >= http.StatusBadRequest:
		return token{}, storage.Errorf(storage.Unauthenticated, "the third party has refused").Because(&denied{status, webpage.ASCII(a.Error)})
	case err != nil, status != http.StatusOK, a.Access == "", len(a.Access)+len(a.Refresh) > MaxSecret, strings.ContainsRune(a.Access, 0):
		return token{}, storage.Errorf(storage.Unavailable, "the token endpoint gave an answer that is none").Because(errors.New("no token in it"))
	}
	t := token{Value: a.Access, Refresh: a.Refresh}
	if seconds, err := a.Expires.Float64(); err == nil && seconds > 0 {
		t.Until = now.Add(time.Duration(math.Min(seconds, longest.Seconds())) * time.Second)
	}
	return t, nil
}

type denied struct {
	status int
	code   string // error code (RFC 6749, §5.2); "" for none
}

func (d *denied) Error() string { return fmt.Sprintf("status %d, %q", d.status, d.code) }

// longest bounds the life that a third party may give a token.
const longest = 10 * 365 * 24 * time.Hour
