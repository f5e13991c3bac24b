package authserver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

// provider is an OpenID Connect provider where users sign in.
type provider struct {
	settings resourceserver.Settings
	client   *http.Client

	mu    sync.Mutex // held while the metadata is fetched
	found *oidc.Provider
	extra providerMetadata
}

// providerMetadata is the part of a provider's metadata that go-oidc does not read.
type providerMetadata struct {
	Methods  []string `json:"token_endpoint_auth_methods_supported"`
	SendsIss bool     `json:"authorization_response_iss_parameter_supported"`
	Claims   string   `json:"userinfo_endpoint"`
}

func newProvider(s resourceserver.Settings, client *http.Client) *provider {
	return &provider{settings: s, client: cmp.Or(client, boundedClient())}
}

const (
	providerWithin = 8 * time.Second
	maxAnswer      = 1 << 20
)

// boundedClient returns a client that reads at most maxAnswer bytes of each answer.
func boundedClient() *http.Client {
	return &http.Client{Timeout: providerWithin, Transport: bounded{http.DefaultTransport}}
}

type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.next.RoundTrip(r)
	if err == nil {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, maxAnswer), res.Body}
	}
	return res, err
}

func (p *provider) Origin() string { return originOf(p.settings.Issuer) }

func originOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// discover returns the provider with its metadata, which it fetches once. go-oidc checks that the
// metadata names the issuer, and fetches the keys later, without the request's context.
func (p *provider) discover(ctx context.Context) (*oidc.Provider, providerMetadata, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		return p.found, p.extra, nil
	}
	found, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), p.client), p.settings.Issuer)
	var extra providerMetadata
	if err == nil {
		err = found.Claims(&extra)
	}
	if err != nil {
		return nil, extra, storage.Errorf(storage.Unavailable, "the identity provider does not answer; try again in a few minutes").Because(err)
	}
	p.found, p.extra = found, extra
	return found, extra, nil
}

func (p *provider) config(found *oidc.Provider, extra providerMetadata, redirect string) oauth2.Config {
	endpoint := found.Endpoint()
	// Without this, x/oauth2 tries both ways to send the client's secret; some providers then
	// refuse the code.
	endpoint.AuthStyle = oauth2.AuthStyleInHeader
	if len(extra.Methods) > 0 && !slices.Contains(extra.Methods, authBasic) || p.settings.ClientSecret == "" {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	scopes := p.settings.LoginScopes
	if scopes == nil {
		scopes = []string{oidc.ScopeOpenID, "profile", "email"}
	}
	return oauth2.Config{ClientID: p.settings.ClientID, ClientSecret: p.settings.ClientSecret, Endpoint: endpoint, RedirectURL: redirect, Scopes: scopes}
}

func (p *provider) URL(ctx context.Context, a Attempt, redirect string) (string, error) {
	found, extra, err := p.discover(ctx)
	if err != nil {
		return "", err
	}
	c := p.config(found, extra, redirect)
	return c.AuthCodeURL(a.State, oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)), nil
}

// notSignedIn returns the error for a sign-in that has failed at the provider.
func notSignedIn(why string) *storage.Error {
	return storage.Errorf(storage.Unauthenticated, "the identity provider has not signed you in: %s", why)
}

// checkAnswer checks the provider's answer, which is in the query of the browser's request. The
// argument issuer is "" for a provider that has none.
func checkAnswer(q url.Values, issuer string, sendsIss bool) error {
	if iss := q.Get("iss"); iss != "" && iss != issuer || iss == "" && sendsIss {
		return notSignedIn("the answer is of another provider")
	}
	if why := webpage.Refusal(q); why != "" {
		return notSignedIn(why)
	}
	return nil
}

// User implements [Login]. The claims are those of the ID token and, if the settings need more, of
// the provider's user endpoint.
func (p *provider) User(ctx context.Context, a Attempt, redirect string, q url.Values) (User, error) {
	found, extra, err := p.discover(ctx)
	if err != nil {
		return User{}, err
	}
	if err := checkAnswer(q, p.settings.Issuer, extra.SendsIss); err != nil {
		return User{}, err
	}
	ctx = oidc.ClientContext(ctx, p.client)
	c := p.config(found, extra, redirect)
	token, err := c.Exchange(ctx, q.Get("code"), oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return User{}, exchangeFailed(err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok || len(raw) > maxField*4 {
		return User{}, notSignedIn("it gave no ID token")
	}
	id, err := found.VerifierContext(ctx, &oidc.Config{ClientID: p.settings.ClientID, SupportedSigningAlgs: p.settings.Algorithms}).Verify(ctx, raw)
	if err != nil {
		return User{}, notSignedIn("its ID token is not good").Because(err)
	}
	if id.Nonce != a.Nonce || id.Subject == "" {
		return User{}, notSignedIn("its ID token is of another sign-in, or of nobody")
	}
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil {
		return User{}, notSignedIn("its ID token cannot be read")
	}
	if extra.Claims != "" && p.settings.Wants(claims) {
		err = addClaims(ctx, found, token, claims)
	}
	return User{claims, Token{token.AccessToken, token.RefreshToken, token.Expiry}}, err
}

// addClaims adds the claims of the provider's user endpoint that the ID token lacks.
func addClaims(ctx context.Context, found *oidc.Provider, token *oauth2.Token, claims map[string]any) error {
	info, err := found.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return storage.Errorf(storage.Unavailable, "the identity provider does not say who you are; try again in a few minutes").Because(err)
	}
	more := map[string]any{}
	if info.Subject != claims["sub"] || info.Claims(&more) != nil {
		return notSignedIn("it speaks of two users")
	}
	for name, value := range more {
		if _, there := claims[name]; !there {
			claims[name] = value
		}
	}
	return nil
}

// exchangeFailed distinguishes a refusal by the provider from a failure that may pass.
func exchangeFailed(err error) error {
	if e, ok := err.(*oauth2.RetrieveError); ok && e.Response != nil && e.Response.StatusCode < http.StatusInternalServerError { //nolint:errorlint // x/oauth2 never wraps it
		return notSignedIn("it does not take its own code, or not our client_id and client_secret").Because(err)
	}
	return storage.Errorf(storage.Unavailable, "the identity provider does not answer; try again in a few minutes").Because(err)
}

// gitHubIssuer is the issuer in the settings for users of GitHub.
const gitHubIssuer = "https://github.com"

// gitHubURLs are the endpoints of GitHub, or of a server like it.
type gitHubURLs struct{ authorize, token, user, emails string }

func gitHub() gitHubURLs {
	return gitHubURLs{
		gitHubIssuer + "/login/oauth/authorize", gitHubIssuer + "/login/oauth/access_token",
		"https://api.github.com/user", "https://api.github.com/user/emails",
	}
}

// github signs in users of GitHub, which has no ID tokens. The subject is the number of
// the user, because another user may later get the same name.
type github struct {
	settings resourceserver.Settings
	client   *http.Client
	at       gitHubURLs
}

func newGitHub(s resourceserver.Settings, client *http.Client, at gitHubURLs) *github {
	return &github{s, cmp.Or(client, boundedClient()), at}
}

func (g *github) config(redirect string) oauth2.Config {
	scopes := g.settings.LoginScopes
	if scopes == nil {
		scopes = []string{"read:user", "user:email"}
	}
	return oauth2.Config{
		ClientID: g.settings.ClientID, ClientSecret: g.settings.ClientSecret, RedirectURL: redirect, Scopes: scopes,
		Endpoint: oauth2.Endpoint{AuthURL: g.at.authorize, TokenURL: g.at.token, AuthStyle: oauth2.AuthStyleInParams},
	}
}

func (g *github) Origin() string { return originOf(g.at.authorize) }

func (g *github) URL(_ context.Context, a Attempt, redirect string) (string, error) {
	c := g.config(redirect)
	return c.AuthCodeURL(a.State, oauth2.S256ChallengeOption(a.Verifier)), nil
}

func (g *github) User(ctx context.Context, a Attempt, redirect string, q url.Values) (User, error) {
	// GitHub does not announce that it sends iss. If it does, the value is the issuer in GitHub's
	// own metadata.
	if err := checkAnswer(url.Values{"code": q["code"], "error": q["error"], "error_description": q["error_description"]}, "", false); err != nil {
		return User{}, err
	}
	if iss := q.Get("iss"); iss != "" && originOf(iss) != originOf(g.at.authorize) {
		return User{}, notSignedIn("the answer is of another provider")
	}
	c := g.config(redirect)
	token, err := c.Exchange(context.WithValue(ctx, oauth2.HTTPClient, g.client), q.Get("code"), oauth2.VerifierOption(a.Verifier))
	if err != nil {
		return User{}, exchangeFailed(err)
	}
	var user struct {
		ID    int64  `json:"id"`
		Login string `json:"login"`
		Name  string `json:"name"`
	}
	if err := g.get(ctx, g.at.user, token.AccessToken, &user); err != nil {
		return User{}, err
	}
	if user.ID <= 0 {
		return User{}, notSignedIn("it does not say who you are")
	}
	claims := map[string]any{"sub": strconv.FormatInt(user.ID, 10), "login": user.Login, "name": user.Name}
	var emails []struct {
		Email    string `json:"email"`
		Primary  bool   `json:"primary"`
		Verified bool   `json:"verified"`
	}
	granted, _ := token.Extra("scope").(string)
	if strings.Contains(granted, "email") || granted == "" && g.settings.LoginScopes == nil {
		if err := g.get(ctx, g.at.emails, token.AccessToken, &emails); err != nil {
			return User{}, err
		}
	}
	for _, e := range emails {
		if e.Primary && e.Verified {
			claims["email"], claims["email_verified"] = e.Email, true
		}
	}
	return User{Claims: claims}, nil
}

func (g *github) get(ctx context.Context, at, token string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "application/vnd.github+json")
	res, err := g.client.Do(r)
	if err == nil {
		defer func() { _ = res.Body.Close() }() // nothing was written through it
		if res.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s answered %d", at, res.StatusCode)
		}
	}
	if err == nil {
		err = json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(into)
	}
	if err != nil {
		return storage.Errorf(storage.Unavailable, "GitHub does not answer; try again in a few minutes").Because(err)
	}
	return nil
}
