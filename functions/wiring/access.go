package wiring

import (
	"cmp"
	"net/url"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/oauth"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// ReadAccess reads the token settings of the servers file, for an endpoint whose URL
// for clients is publicURL. [New] checks them.
func ReadAccess(servers *catalog.Catalog, publicURL string) (*oauth.Settings, error) {
	section := servers.Access()
	if section == nil {
		section = []byte("{}")
	}
	s, err := oauth.ReadSettings(section)
	if err != nil {
		return nil, err
	}
	s.PublicURL = publicURL
	return &s, nil
}

// ReadBroker reads the same section for the broker. Without an issuer, the broker has a
// sign-in of its own, for development, with any name; only on loopback. issuer and
// secret replace those of the file unless they are empty.
func ReadBroker(servers *catalog.Catalog, publicURL, issuer, secret string) (*oauth.Settings, error) {
	s, err := ReadAccess(servers, publicURL)
	if err != nil {
		return nil, err
	}
	s.Issuer, s.ClientSecret = cmp.Or(issuer, s.Issuer), cmp.Or(secret, s.ClientSecret)
	s.Introspection = nil // only for tokens of others
	if u, err := url.Parse(publicURL); s.Issuer == "" && err == nil && u.Scheme == "http" {
		s.Issuer, s.Name = strings.TrimSuffix(publicURL, "/"), "dev"
	}
	return s, nil
}

// takeTokens makes Auth accept tokens besides keys. The error names the wrong setting.
func (f *Function) takeTokens(others [][]byte) error {
	keys := auth.NewKeys(f.Store)
	if f.Broker {
		sealer, err := oauth.NewTokenSealer(f.Secret, others...)
		if err != nil {
			return err
		}
		tokens, err := oauth.NewIssued(oauth.IssuedConfig{Settings: *f.Access, Servers: f.Servers.Names(), Sealer: sealer, Store: f.Store, Keys: keys})
		if err != nil {
			return err
		}
		f.Auth, f.SignIn = auth.NewEither(keys, tokens), tokens
		return nil
	}
	sealer, err := session.NewSealer("token", f.Secret, others...)
	if err != nil {
		return err
	}
	tokens, err := oauth.New(oauth.Config{Settings: *f.Access, Servers: f.Servers.Names(), Sealer: sealer, Log: f.Log})
	if err != nil {
		return err
	}
	f.Auth, f.SignIn = auth.NewEither(keys, tokens), tokens
	return nil
}
