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

// ReadAccess reads the settings for access tokens in the servers file. The argument publicURL is
// the endpoint's URL for clients. The argument secret, if not "", replaces the client secret in the
// file. [New] checks the settings.
func ReadAccess(servers *serversfile.File, publicURL, secret string) (*resourceserver.Settings, error) {
	var s resourceserver.Settings
	if section := servers.Access(); section != nil {
		var err error
		if s, err = resourceserver.ReadSettings(section); err != nil {
			return nil, err
		}
	}
	s.PublicURL, s.Groups, s.ClientSecret = publicURL, addresses(servers), cmp.Or(secret, s.ClientSecret)
	return &s, nil
}

// addresses returns the paths of all groups of servers, and the servers of each group.
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

// ReadBroker is [ReadAccess] for an endpoint with its own authorization server. If the file names
// no issuer and the endpoint listens on loopback only, users sign in with any name, for
// development. onLoopback is needed because publicURL may name loopback although the endpoint is
// open to a network.
func ReadBroker(servers *serversfile.File, publicURL, secret string, onLoopback bool) (*resourceserver.Settings, error) {
	s, err := ReadAccess(servers, publicURL, secret)
	if err != nil {
		return nil, err
	}
	s.Introspection = nil // Introspection is for a provider's tokens, but this endpoint issues its own
	if u, err := url.Parse(publicURL); s.Issuer == "" && onLoopback && err == nil && u.Scheme == "http" {
		s.Issuer, s.Name = strings.TrimSuffix(publicURL, "/"), "dev"
	}
	return s, nil
}

// takeTokens makes f.Auth accept access tokens as well as API keys. Tokens that were sealed with
// f.OtherSecret stay valid. The error names the wrong setting.
func (f *Function) takeTokens() error {
	keys := apikey.NewKeys(f.Store)
	if f.AuthServer {
		sealer, err := resourceserver.NewTokenSealer(f.Secret, f.Others()...)
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
	sealer, err := storage.NewSealer("token", f.Secret, f.Others()...)
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
