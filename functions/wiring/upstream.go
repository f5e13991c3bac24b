package wiring

import (
	"context"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/access/upstream"
	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

// openVault opens the store of the keys and tokens that callers have at the third parties
// of the servers file. The error names the wrong setting.
func (f *Function) openVault(others [][]byte) error {
	c := upstream.Config{Store: f.Store, Secret: f.Secret, Others: others, PublicURL: f.PublicURL, SignsIn: f.Broker, Log: f.Log}
	if f.Access != nil {
		c.PublicURL = f.Access.PublicURL
	}
	c.PublicURL = strings.TrimSuffix(c.PublicURL, "/")
	var err error
	if f.Servers != nil {
		if c.Providers, err = upstream.ReadProviders(f.Servers.Connect(), f.ConnectSecrets); err != nil {
			return err
		}
	}
	f.Vault, err = upstream.New(c)
	return err
}

// secrets returns the values of a session's principal that the processes of its server
// use.
func (f *Function) secrets(ctx context.Context, s session.Session) (map[string]session.Secret, error) {
	server, _ := f.Servers.Server(s.Server)
	names := server.Principal()
	if len(names) == 0 {
		return nil, nil
	}
	has, _, err := f.Vault.Get(ctx, s.Tenant, s.Principal, names)
	return has, err
}
