// Package authorization builds the pages for browsers: those of the authorization server, and
// those where users connect accounts at third parties. It is separate from package wiring because
// it links an OpenID Connect client, which other Lambda functions do not need.
package authorization

import (
	"context"
	"net/http"
	"slices"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Handler serves the [Pages] of a Function. Any other path gets 404, which tells clients that there
// is no authorization server.
func Handler(f *wiring.Function) (http.Handler, error) {
	p, err := New(f, nil)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.Serves(r.URL.Path) {
			p.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"error":"not_found","error_description":"nobody signs in here; send an API key, or a token of the provider that the metadata of a server names"}`))
	}), nil
}

// Pages are the authorization server of a Function, if it has one, and the pages where users
// connect accounts at third parties.
type Pages struct {
	AuthServer *authserver.Server // nil if nobody can sign in here
	pages      *credentials.Pages
}

// Paths returns all paths that [Pages] may serve. The argument signIn is true if there is an
// authorization server.
func Paths(signIn bool) []string {
	if !signIn {
		return credentials.Paths()
	}
	return slices.Concat(authserver.Paths(), credentials.Paths())
}

// Serves reports whether a path is one of the pages.
func (p *Pages) Serves(path string) bool {
	return slices.Contains(credentials.Paths(), path) || p.AuthServer != nil && p.AuthServer.Serves(path)
}

// ServeHTTP implements http.Handler.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if slices.Contains(credentials.Paths(), r.URL.Path) {
		p.pages.ServeHTTP(w, r)
		return
	}
	p.AuthServer.ServeHTTP(w, r)
}

// New returns the pages of a Function. The function change, if not nil, changes the settings of the
// authorization server. An error names the wrong setting.
func New(f *wiring.Function, change func(*authserver.Config)) (*Pages, error) {
	p := &Pages{}
	if f.AuthServer {
		c := authserver.Config{
			Settings: *f.Access, Servers: f.Servers.Names(), Store: f.Store, Keys: apikey.NewKeys(f.Store), Secret: f.Secret, Others: f.Others(), Log: f.Log,
			Served:   func(name string) bool { _, ok := f.Server(name); return ok },
			SignedIn: keepSignIn(f),
		}
		if change != nil {
			change(&c)
		}
		var err error
		if p.AuthServer, err = authserver.New(c); err != nil {
			return nil, err
		}
	}
	var err error
	p.pages, err = credentials.NewPages(pagesOf(f, p.AuthServer))
	return p, err
}

// keepSignIn returns a function that stores the provider's tokens of a user who has signed in for a
// server or for a group of servers. It stores them only if one of the servers exchanges them for
// other tokens.
func keepSignIn(f *wiring.Function) func(context.Context, storage.Identity, string, authserver.Token) error {
	return func(ctx context.Context, who storage.Identity, server string, t authserver.Token) error {
		if !slices.ContainsFunc(f.Access.Members(server), func(name string) bool {
			s, _ := f.Server(name)
			return f.Vault.Exchanges(s.Providers)
		}) {
			return nil
		}
		return f.Vault.KeepSignIn(ctx, who.Tenant, who.Principal, t.Access, t.Refresh, t.Until)
	}
}

// pagesOf returns the settings of the pages where users connect accounts at third parties.
func pagesOf(f *wiring.Function, signIn *authserver.Server) credentials.PagesConfig {
	c := credentials.PagesConfig{
		Vault: f.Vault, Secret: f.Secret, Others: f.Others(), Log: f.Log,
		Providers: func(server string) ([]string, bool) {
			s, ok := f.Server(server)
			return s.Providers, ok
		},
		Connected: func(ctx context.Context, a credentials.Asked) error {
			o := sessions.Publisher{Store: f.Store, Clients: f.Relay.Clients}
			return o.Visited(ctx, a.Session, a.ID, f.Limits.EventAge)
		},
	}
	switch {
	case signIn != nil:
		c.SignIn = signIn
	case f.Open:
		c.Everyone = &storage.Identity{Tenant: apikey.LocalTenant, Principal: apikey.LocalTenant}
	default:
		c.Redeem = f.Tickets.Redeem
	}
	return c
}
