package authserver

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// serveGroups removes from the groups the servers that clients may not ask for.
func (b *targets) serveGroups() {
	groups := map[string][]string{}
	for address, members := range b.settings.Groups {
		served := slices.DeleteFunc(slices.Clone(members), func(name string) bool { return !slices.Contains(b.servers, name) })
		if len(served) > 0 {
			groups[address] = served
		}
	}
	b.settings.Groups = groups
}

// has reports whether clients may ask for a token for a server, for a group or for the console.
func (b *targets) has(name string) bool {
	if name == resourceserver.Console {
		return len(b.settings.Roles) > 0
	}
	_, group := b.settings.Groups[name]
	return group || slices.Contains(b.servers, name)
}

// resource returns the server or group that a request's resource names; "" if it names none. Some clients
// send the public URL without a path, which counts as none.
func (b *targets) resource(f url.Values) (string, error) {
	asked := f.Get("resource")
	origin, _, _ := strings.Cut(asked, "?")
	if asked == "" || strings.EqualFold(strings.TrimSuffix(origin, "/"), b.settings.PublicURL) {
		return "", nil
	}
	server, ok := b.settings.Server(b.servers, asked)
	if !ok {
		return "", bad("invalid_target", "the resource is not a server of this endpoint; send the URL of one server, or the address of all")
	}
	return server, nil
}

// target returns the server for which a client without a user wants a token: the one that the
// request names, or the only server.
func (b *targets) target(f url.Values) (string, error) {
	server, err := b.resource(f)
	switch {
	case err != nil:
		return "", err
	case server == "" && len(b.servers) == 1:
		return b.servers[0], nil
	case server == "":
		return "", bad("invalid_target", "there are several servers; send the URL of one as resource")
	}
	return server, nil
}

// limit drops from a request the scopes that the requested server does not have.
func (b *targets) limit(req *request) {
	if req.Server != "" {
		req.Scopes = b.settings.Known(req.Server, req.Scopes)
		return
	}
	var known []string
	for _, server := range b.servers {
		known = append(known, b.settings.Known(server, req.Scopes)...)
	}
	slices.Sort(known)
	req.Scopes = slices.Compact(known)
}

// admits reports whether the user of a grant could still sign in, and the rules still let them use
// its server.
func (b *targets) admits(g storage.Grant) bool {
	claims, ok := claimsOf(g)
	return ok && (g.Issuer == "" || g.Issuer == b.settings.Issuer) && b.settings.Names(g.Tenant, g.Principal) && b.settings.Admit(g.Server, claims) == nil
}

// toolRules returns the ToolRules of the user of a grant, by the present settings.
func (b *targets) toolRules(g storage.Grant) []string {
	claims, _ := claimsOf(g)
	return b.settings.ToolRules(g.Server, claims)
}

// claimsOf decodes the claims of a grant, which rules for tools read. ok is false if they
// are no JSON object.
func claimsOf(g storage.Grant) (claims map[string]any, ok bool) {
	claims = map[string]any{}
	return claims, len(g.Claims) == 0 || json.Unmarshal(g.Claims, &claims) == nil
}
