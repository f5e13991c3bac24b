package front

import (
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// SignIn tells clients how to sign in (MCP 2025-11-25, basic/authorization). Package
// oauth has an implementation. An address is the path of a server as a client calls it.
// It keeps the slash behind the path and the query that the client has added, because
// clients compare the resource with it.
type SignIn interface {
	// Metadata returns the protected resource metadata of a server (RFC 9728 §2).
	Metadata(server, address string) []byte
	// Challenge returns the WWW-Authenticate header for a request that Auth has refused
	// with err, "" for none. tried says that the request had a token.
	Challenge(address string, tried bool, err error) string
}

const (
	wellKnown        = "/.well-known/"
	resourceMetadata = "/.well-known/oauth-protected-resource"
)

// challenge tells a refused request how to authenticate (RFC 6750 §3). If the request
// had no token and is Unauthenticated, the challenge names no error. A server that does
// not exist has no metadata to point to.
func (x *exchange) challenge(server string, err error) {
	scheme, _, _ := strings.Cut(x.r.Header.Get("Authorization"), " ")
	tried := strings.EqualFold(scheme, "Bearer")
	code := session.CodeOf(err)
	value := ""
	_, known := x.opts.Servers(server)
	switch {
	case x.opts.SignIn != nil && known:
		value = x.opts.SignIn.Challenge(x.address(x.r.URL.Path), tried, err)
	case code == session.Unauthenticated && tried:
		value = `Bearer error="invalid_token"`
	case code == session.Unauthenticated:
		value = "Bearer"
	case code == session.Invalid:
		value = `Bearer error="invalid_request"`
	}
	if value != "" {
		x.w.Header().Set("WWW-Authenticate", value)
	}
}

// isDiscovery reports whether a request asks how to sign in. Pages of any origin may
// ask, because the answer is public.
func (x *exchange) isDiscovery() bool {
	return x.opts.SignIn != nil && strings.Contains(x.r.URL.Path, wellKnown) && allowedHost(x.opts.AllowedHosts, x.r.Host)
}

// discovery serves the metadata of each server below [resourceMetadata]. The host
// itself has none: a token for the host would be one for every server. Nor does
// discovery serve metadata of an authorization server. Clients that found it here would
// compare its issuer with this host.
func (x *exchange) discovery() error {
	h := x.w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if x.r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", methodsDiscovery)
		h.Set("Access-Control-Allow-Headers", "Accept, "+wire.HeaderProtocolVersion)
		h.Set("Access-Control-Max-Age", "86400")
		x.empty(http.StatusNoContent)
		return nil
	}
	nothing := refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, "there is nothing at this path; the metadata of a server is at "+resourceMetadata+"/<server>/mcp")
	path, ours := strings.CutPrefix(x.r.URL.Path, resourceMetadata)
	server, resource, ok := split(path)
	if !ours || !ok || resource != "mcp" && resource != "sse" {
		return nothing
	}
	if _, known := x.opts.Servers(server); !known {
		return nothing
	}
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		return notAllowed(methodsDiscovery, "this method is not served here; use GET")
	}
	h.Set("Cache-Control", "public, max-age=300")
	x.json(http.StatusOK, x.opts.SignIn.Metadata(server, x.address(path)))
	return nil
}

// maxQuery is the length up to which a query is repeated, in bytes.
const maxQuery = 512

// address returns the address that a client called when it was refused at path, or when
// it asked for the metadata of path. A message and a ticket belong to the address that
// the client was given.
func (x *exchange) address(path string) string {
	server, resource, _ := split(path)
	switch resource {
	case "message":
		return "/" + server + "/sse"
	case "ticket":
		return "/" + server + "/mcp"
	}
	address := "/" + server + "/" + resource
	if strings.HasSuffix(path, "/") {
		address += "/"
	}
	// Leave out a query that would change in a header or in JSON. No client sends such
	// a one.
	plain := func(c rune) bool { return c > ' ' && c <= '~' && !strings.ContainsRune(`"\<>`, c) }
	q := x.r.URL.RawQuery
	if q != "" && len(q) <= maxQuery && strings.IndexFunc(q, func(c rune) bool { return !plain(c) }) < 0 {
		address += "?" + q
	}
	return address
}
