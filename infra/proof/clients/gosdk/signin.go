package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// signedIn is what a sign-in has come to. The programs in ../ts and ../py print the same.
type signedIn struct {
	Tools  int    `json:"tools"`
	Logins int    `json:"logins"`
	Tokens int    `json:"tokens"` // answers of the token endpoint
	Failed int    `json:"failed"` // calls
	Scope  string `json:"scope"`
}

// countedTokens counts the good answers of token endpoints.
type countedTokens struct{ n atomic.Int32 }

// RoundTrip implements http.RoundTripper.
func (c *countedTokens) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/token") && res.StatusCode == http.StatusOK {
		c.n.Add(1)
	}
	return res, err
}

// lapsing is a token source whose first token expires when a test says so.
type lapsing struct {
	first   *oauth2.Token
	renewed oauth2.TokenSource
	lapsed  *atomic.Bool
}

// Token implements oauth2.TokenSource.
func (l lapsing) Token() (*oauth2.Token, error) {
	if l.lapsed.Load() {
		return l.renewed.Token()
	}
	return l.first, nil
}

// runSignIn has the SDK's client sign in as ada, list the tools, call the first one, and
// call it again with a token that has expired, for which it has to refresh.
func runSignIn(ctx context.Context, url string, stdout, stderr io.Writer) int {
	result, err := signIn(ctx, url)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return 1
	}
	if err := json.NewEncoder(stdout).Encode(result); err != nil {
		return 1 // nobody reads the result any more
	}
	return 0
}

func signIn(ctx context.Context, url string) (result signedIn, err error) {
	tokens, lapsed := &countedTokens{}, &atomic.Bool{}
	user := webuser.New(webuser.Ada())
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "go-sdk", RedirectURIs: []string{redirect}, TokenEndpointAuthMethod: "none", GrantTypes: []string{"authorization_code", "refresh_token"},
		}},
		RedirectURL: redirect,
		Client:      &http.Client{Transport: tokens},
		AuthorizationCodeFetcher: func(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			result.Logins++
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
			result.Scope, _ = first.Extra("scope").(string)
			old := *first
			old.Expiry = time.Now().Add(-time.Minute)
			return lapsing{first, config.TokenSource(ctx, &old), lapsed}, nil
		},
	})
	if err != nil {
		return result, err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "signin", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url, OAuthHandler: handler}, nil)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	list, err := session.ListTools(ctx, nil)
	if err != nil {
		return result, err
	}
	result.Tools = len(list.Tools)
	for _, expired := range []bool{false, true} {
		lapsed.Store(expired)
		called, err := session.CallTool(ctx, &mcp.CallToolParams{Name: list.Tools[0].Name, Arguments: map[string]any{}})
		if err != nil {
			return result, err
		}
		if called.IsError {
			result.Failed++
		}
	}
	result.Tokens = int(tokens.n.Load())
	return result, nil
}
