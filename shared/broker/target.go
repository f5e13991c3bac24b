package broker

import (
	"encoding/json"
	"net/url"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// resource returns the server that a request's resource names; "" if it names none.
func (b *targets) resource(f url.Values) (string, error) {
	asked := f.Get("resource")
	if asked == "" {
		return "", nil
	}
	server, ok := b.settings.Server(b.servers, asked)
	if !ok {
		return "", bad("invalid_target", "the resource is not a server of this endpoint; send the URL of one server")
	}
	return server, nil
}

// target returns the server of a request without a user: the resource, or the only
// server.
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

// limit keeps only those scopes of a request that its server has.
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

// offers reports whether a server has a scope.
func (b *targets) offers(server, scope string) bool {
	return slices.Contains(b.settings.Known(server, []string{scope}), scope)
}

// admits reports whether the rules still let the user of a grant use its server.
func (b *targets) admits(g session.Grant) bool {
	claims, ok := claimsOf(g)
	return ok && b.settings.Admit(g.Server, claims) == nil
}

// toolRules returns the rules for tools that the user of a grant fits.
func (b *targets) toolRules(g session.Grant) []string {
	claims, _ := claimsOf(g)
	return b.settings.ToolRules(g.Server, claims)
}

// claimsOf returns the claims of a grant that the rules read.
func claimsOf(g session.Grant) (claims map[string]any, ok bool) {
	claims = map[string]any{}
	return claims, len(g.Claims) == 0 || json.Unmarshal(g.Claims, &claims) == nil
}
