package wiring

import (
	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/catalog"
	"github.com/dormouse-mcp/dormouse/shared/oauth"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// ReadAccess reads which tokens the servers file has taken, at an endpoint that clients
// call publicURL. [New] checks what it says.
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

// takeTokens has Auth take tokens beside keys. The error says what is wrong with the
// settings.
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
