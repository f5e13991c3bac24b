package wiring

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// ReadAccess reads the token settings of the servers file, for an endpoint whose URL
// for clients is publicURL. secret replaces that of the file unless it is empty. [New]
// checks them.
func ReadAccess(servers *serversfile.File, publicURL, secret string) (*resourceserver.Settings, error) {
	var s resourceserver.Settings
	if section := servers.Access(); section != nil { // a file without this section costs a cold start no decoding
		var err error
		if s, err = resourceserver.ReadSettings(section); err != nil {
			return nil, err
		}
	}
	s.PublicURL, s.Groups, s.ClientSecret = publicURL, addresses(servers), cmp.Or(secret, s.ClientSecret)
	return &s, nil
}

// addresses returns the addresses at which several servers are served, with the servers at
// each.
func addresses(servers *serversfile.File) map[string][]string {
	all := map[string][]string{}
	for _, name := range servers.Groups() {
		g, _ := servers.Group(name)
		at := "/g/" + name + "/mcp"
		if name == serversfile.AllServers {
			at = "/mcp"
		}
		all[at] = slices.DeleteFunc(servers.Names(), func(server string) bool { return g.Servers != nil && !slices.Contains(g.Servers, server) })
	}
	return all
}

// ReadBroker reads the same settings as [ReadAccess] for an endpoint with an authorization server
// of its own. If the file names no issuer and the endpoint listens on loopback only, users sign in
// with any name, for development. The URL does not say where the endpoint listens: one for the
// network may have a URL on loopback.
func ReadBroker(servers *serversfile.File, publicURL, secret string, onLoopback bool) (*resourceserver.Settings, error) {
	s, err := ReadAccess(servers, publicURL, secret)
	if err != nil {
		return nil, err
	}
	s.Introspection = nil // it is for tokens of a provider, and this endpoint issues its own
	if u, err := url.Parse(publicURL); s.Issuer == "" && onLoopback && err == nil && u.Scheme == "http" {
		s.Issuer, s.Name = strings.TrimSuffix(publicURL, "/"), "dev"
	}
	return s, nil
}

// takeTokens makes Auth accept tokens besides keys. others are further secrets that open them. The
// error names the wrong setting.
func (f *Function) takeTokens(others [][]byte) error {
	keys := apikey.NewKeys(f.Store)
	if f.AuthServer {
		sealer, err := resourceserver.NewTokenSealer(f.Secret, others...)
		if err != nil {
			return err
		}
		tokens, err := resourceserver.NewIssued(resourceserver.IssuedConfig{Settings: *f.Access, Servers: f.Servers.Names(), Sealer: sealer, Store: f.Store, Keys: keys})
		if err != nil {
			return err
		}
		f.Auth, f.SignIn = apikey.NewEither(keys, tokens), tokens
		if len(f.Access.Roles) > 0 {
			f.Users = tokens
		}
		return nil
	}
	sealer, err := storage.NewSealer("token", f.Secret, others...)
	if err != nil {
		return err
	}
	tokens, err := resourceserver.New(resourceserver.Config{Settings: *f.Access, Servers: f.Servers.Names(), Sealer: sealer, Log: f.Log})
	if err != nil {
		return err
	}
	f.Auth, f.SignIn = apikey.NewEither(keys, tokens), tokens
	return nil
}
