package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/webuser"
)

const redirect = "http://127.0.0.1:5000/done"

// signedIn is the result of a sign-in. The programs in ../ts and ../py print the same.
type signedIn struct {
	Version string `json:"version"` // version of the protocol
	Tools   int    `json:"tools"`
	Logins  int    `json:"logins"`
	Tokens  int    `json:"tokens"` // number of answers of the token endpoint
	Failed  int    `json:"failed"` // number of calls that failed
	Scope   string `json:"scope"`
	Revoked int    `json:"revoked,omitempty"` // the status that a revoked token got
	Text    string `json:"text"`              // what the tool has said last
}

// signingIn is one sign-in: its settings, and what it has got so far.
type signingIn struct {
	url, protocol, document string
	revoke, stepUp          bool

	clientID string
	tokens   countedTokens
	lapsed   atomic.Bool
	newest   *oauth2.Token
	result   signedIn
}

// countedTokens counts the good answers of token endpoints.
type countedTokens struct{ n atomic.Int32 }

func (c *countedTokens) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/token") && res.StatusCode == http.StatusOK {
		c.n.Add(1)
	}
	return res, err
}

// lapsing is a token source whose first token counts as expired once signingIn.lapsed is set.
type lapsing struct {
	*signingIn
	first   *oauth2.Token
	renewed oauth2.TokenSource
}

func (l lapsing) Token() (token *oauth2.Token, err error) {
	if token = l.first; l.lapsed.Load() {
		token, err = l.renewed.Token()
	}
	l.newest = token
	return token, err
}

// runSignIn has the SDK's client sign in as ada, list the tools, call the first one, and
// call it again with a token that has expired, for which it has to refresh.
func runSignIn(ctx context.Context, s *signingIn, stdout, stderr io.Writer) int {
	err := s.run(ctx)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return 1
	}
	if err := json.NewEncoder(stdout).Encode(s.result); err != nil {
		return 1 // nobody reads the result any more
	}
	return 0
}

func (s *signingIn) run(ctx context.Context) (err error) {
	handler, err := s.handler()
	if err != nil {
		return err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "signin", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.url, OAuthHandler: handler}, &mcp.ClientSessionOptions{ProtocolVersion: s.protocol})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	s.result.Version = session.InitializeResult().ProtocolVersion
	list, err := session.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	s.result.Tools = len(list.Tools)
	call := func() error {
		called, err := session.CallTool(ctx, &mcp.CallToolParams{Name: list.Tools[0].Name, Arguments: map[string]any{}})
		if err != nil {
			return err
		}
		if called.IsError {
			s.result.Failed++
		}
		if text, ok := called.Content[0].(*mcp.TextContent); ok {
			s.result.Text = text.Text
		}
		return nil
	}
	if s.stepUp {
		return call()
	}
	for _, expired := range []bool{false, true} {
		s.lapsed.Store(expired)
		if err := call(); err != nil {
			return err
		}
	}
	if s.revoke {
		if err := s.endGrant(ctx); err != nil {
			return err
		}
		s.lapsed.Store(false)
		if err := call(); err != nil {
			return err
		}
	}
	s.result.Tokens = int(s.tokens.n.Load())
	return nil
}

// handler returns the part of the SDK that signs in.
func (s *signingIn) handler() (auth.OAuthHandler, error) {
	user := webuser.New(webuser.Ada())
	config := &auth.AuthorizationCodeHandlerConfig{
		RedirectURL: redirect,
		Client:      &http.Client{Transport: &s.tokens},
		AuthorizationCodeFetcher: func(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			s.result.Logins++
			page, err := user.Visit(ctx, args.URL, redirect)
			if err != nil {
				return nil, err
			}
			q := page.URL.Query()
			if q.Get("code") == "" {
				return nil, fmt.Errorf("no code from %s: %s", page.URL, page.Text)
			}
			return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
		},
		NewTokenSource: func(ctx context.Context, config *oauth2.Config, first *oauth2.Token) (oauth2.TokenSource, error) {
			s.result.Scope, _ = first.Extra("scope").(string)
			s.clientID = config.ClientID
			old := *first
			old.Expiry = time.Now().Add(-time.Minute)
			return lapsing{s, first, config.TokenSource(ctx, &old)}, nil
		},
	}
	if s.document != "" {
		config.ClientIDMetadataDocumentConfig = &auth.ClientIDMetadataDocumentConfig{URL: s.document}
	} else {
		config.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "go-sdk", RedirectURIs: []string{redirect}, TokenEndpointAuthMethod: "none", GrantTypes: []string{"authorization_code", "refresh_token"},
		}}
	}
	return auth.NewAuthorizationCodeHandler(config)
}

// endGrant revokes the grant, and waits until its access token is refused.
func (s *signingIn) endGrant(ctx context.Context) error {
	at, err := url.Parse(s.url)
	if err != nil {
		return err
	}
	form := url.Values{"token": {s.newest.RefreshToken}, "client_id": {s.clientID}}
	if _, err := status(ctx, at.Scheme+"://"+at.Host+"/revoke", "application/x-www-form-urlencoded", form.Encode(), ""); err != nil {
		return err
	}
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(500 * time.Millisecond) {
		if s.result.Revoked, err = status(ctx, s.url, "application/json", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, s.newest.AccessToken); err != nil || s.result.Revoked == http.StatusUnauthorized {
			return err
		}
	}
	return nil
}

// status posts a body and returns the status of the answer.
func status(ctx context.Context, to, kind, body, token string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}
