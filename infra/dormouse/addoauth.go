package dormouse

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// discoverWithin is the longest time for finding out where the users of a remote server sign in.
const discoverWithin = 30 * time.Second

// connects finds out where the users of a remote server sign in (MCP 2025-11-25, "Authorization").
// It registers this endpoint there unless --client-id is set, writes the result to
// x-dormouse.connect, and adds a header to e that sends each user's token.
func (c *addCommand) connects(ctx context.Context, f *edited, e *serversedit.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, discoverWithin)
	defer cancel()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	resource, err := protection(ctx, client, c.remote)
	if err != nil {
		return err
	}
	meta, err := auth.GetAuthServerMetadata(ctx, resource.AuthorizationServers[0], client)
	switch {
	case err != nil:
		return fmt.Errorf("the authorization server %s does not describe itself: %w", resource.AuthorizationServers[0], err)
	case meta == nil || meta.AuthorizationEndpoint == "" || meta.TokenEndpoint == "":
		return fmt.Errorf("the authorization server %s describes no endpoints: write x-dormouse.connect by hand", resource.AuthorizationServers[0])
	case !slices.Contains(meta.CodeChallengeMethodsSupported, "S256"):
		return fmt.Errorf("the authorization server %s does not support PKCE, which MCP requires", meta.Issuer)
	}
	p := map[string]any{
		"title": cmp.Or(resource.ResourceName, c.Name), "authorize": meta.AuthorizationEndpoint, "token": meta.TokenEndpoint,
		"issuer": meta.Issuer, "resource": resource.Resource,
	}
	if len(resource.ScopesSupported) > 0 {
		p["scopes"] = resource.ScopesSupported
	}
	redirect := credentials.RedirectOf(strings.TrimSuffix(c.PublicURL, "/"))
	if p["client_id"] = c.ClientID; c.ClientID == "" {
		if err := c.register(ctx, client, f, meta, redirect, p); err != nil {
			return err
		}
	}
	e.Headers = append(e.Headers, serversedit.Variable{Name: "Authorization", Value: "Bearer ${principal:" + c.Name + "}"})
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return f.SetOurs(raw, "connect", c.Name)
}

// register registers this endpoint as a client of an authorization server (RFC 7591), and sets the
// client id and secret in p.
func (c *addCommand) register(ctx context.Context, client *http.Client, f *edited, meta *oauthex.AuthServerMeta, redirect string, p map[string]any) error {
	byHand := "register " + redirect + " there, and give --client-id"
	if meta.RegistrationEndpoint == "" {
		return fmt.Errorf("the authorization server %s registers no clients by itself: %s", meta.Issuer, byHand)
	}
	made, err := oauthex.RegisterClient(ctx, meta.RegistrationEndpoint, &oauthex.ClientRegistrationMetadata{
		ClientName: "Dormouse", RedirectURIs: []string{redirect}, GrantTypes: []string{"authorization_code", "refresh_token"},
		ResponseTypes: []string{"code"}, TokenEndpointAuthMethod: "none",
	}, client)
	if err != nil {
		return fmt.Errorf("the authorization server %s does not register this endpoint: %w; %s", meta.Issuer, err, byHand)
	}
	p["client_id"] = made.ClientID
	if made.ClientSecret == "" {
		return nil
	}
	variable, err := f.env.Keep(c.Name, serversfile.InputVariable(c.Name+"_CLIENT_SECRET"), made.ClientSecret)
	p["client_secret"] = "${" + variable + "}"
	if made.TokenEndpointAuthMethod == "client_secret_basic" {
		p["auth"] = "basic"
	}
	return err
}

// protection returns the metadata in which a server names its authorization servers (RFC 9728). The
// metadata is at the URL that the server names when it refuses a request without a token, or else
// at a well-known URL.
func protection(ctx context.Context, client *http.Client, server string) (*oauthex.ProtectedResourceMetadata, error) {
	probe := wire.NewRequest(json.RawMessage("1"), wire.MethodInitialize, json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"dormouse","version":"1"}}`))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server, bytes.NewReader(probe))
	if err != nil {
		return nil, errors.New("the URL of the server is none")
	}
	r.Header.Set("Content-Type", wire.MediaJSON)
	r.Header.Set("Accept", wire.MediaJSON+", "+wire.MediaSSE)
	resp, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("the server does not answer: %w", err)
	}
	_ = resp.Body.Close() // the status and the headers are enough
	if resp.StatusCode != http.StatusUnauthorized {
		return nil, fmt.Errorf("the server does not ask for a sign-in: it answers with %s; leave out --oauth", resp.Status)
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil, errors.New("the URL of the server is none")
	}
	u.RawQuery, u.Fragment = "", ""
	root := u.Scheme + "://" + u.Host
	places := []string{root + "/.well-known/oauth-protected-resource" + strings.TrimSuffix(u.Path, "/"), root + "/.well-known/oauth-protected-resource"}
	if challenges, err := oauthex.ParseWWWAuthenticate(resp.Header.Values("WWW-Authenticate")); err == nil {
		for _, c := range challenges {
			if at := c.Params["resource_metadata"]; at != "" {
				places = slices.Insert(places, 0, at)
			}
		}
	}
	for _, at := range places {
		for _, of := range []string{u.String(), strings.TrimSuffix(u.String(), "/"), root + "/", root} {
			meta, err := oauthex.GetProtectedResourceMetadata(ctx, at, of, client)
			if err == nil && len(meta.AuthorizationServers) > 0 {
				return meta, nil
			}
		}
	}
	// In MCP 2025-03-26, a server without this metadata is its own authorization server.
	return &oauthex.ProtectedResourceMetadata{Resource: u.String(), AuthorizationServers: []string{root}}, nil
}
