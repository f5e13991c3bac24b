package wiring

import (
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

// takeTokens makes Auth take tokens besides keys. The error names the setting that is
// wrong.
func (f *Function) takeTokens(others [][]byte) error {
	sealer, err := session.NewSealer("token", f.Secret, others...)
	if err != nil {
		return err
	}
	tokens, err := oauth.New(oauth.Config{Settings: *f.Access, Servers: f.Servers.Names(), Sealer: sealer, Log: f.Log})
	if err != nil {
		return err
	}
	f.Auth, f.SignIn = auth.NewEither(auth.NewKeys(f.Store), tokens), tokens
	return nil
}
