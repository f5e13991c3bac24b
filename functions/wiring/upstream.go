package wiring

import (
	"context"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// openVault opens the storage of keys and tokens with which callers use third parties that the
// servers file names. An error names the wrong setting.
func (f *Function) openVault() error {
	c := credentials.Config{Store: f.Store, Secret: f.Secret, Others: f.Others(), PublicURL: f.PublicURL, SignsIn: f.AuthServer, Log: f.Log}
	if f.Access != nil {
		c.PublicURL = f.Access.PublicURL
	}
	c.PublicURL = strings.TrimSuffix(c.PublicURL, "/")
	var err error
	if f.Servers != nil && !f.NoConnect {
		if c.Providers, err = credentials.ReadProviders(f.Servers.Connect(), f.ConnectSecrets); err != nil {
			return err
		}
	}
	f.Vault, err = credentials.New(c)
	return err
}

// secrets returns the keys and tokens of a session's principal for third parties, as far as the
// session's server needs them.
func (f *Function) secrets(ctx context.Context, s storage.Session) (map[string]storage.Secret, error) {
	server, _ := f.Servers.Server(s.Server)
	names := server.Principal()
	if len(names) == 0 {
		return nil, nil
	}
	has, _, err := f.Vault.Get(ctx, s.Tenant, s.Principal, names)
	return has, err
}
