package front

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// SignIn tells clients how to sign in (MCP 2025-11-25, basic/authorization). Package oauth
// has an implementation. An address is the path of a server as a client calls it. It keeps
// a slash at the end of the path, and the query that the client has added, because clients
// compare the resource with it.
type SignIn interface {
	// Metadata returns the protected resource metadata of a server or a group (RFC 9728 §2).
	// server is its name for people.
	Metadata(server, address string) []byte
	// Challenge returns the WWW-Authenticate header for a request that Auth has refused
	// with err, "" for none. tried reports that the request had a token.
	Challenge(address string, tried bool, err error) string
	// Tools returns which tools of a server a caller sees in lists.
	Tools(who session.Identity, server string) session.ToolFilter
	// Permit checks whether a caller may call tools of a server with its token. If a
	// token with more scopes would suffice, the error is Forbidden, and Challenge names
	// these scopes.
	Permit(who session.Identity, server string, tools []string) error
	// MetadataURL returns the URL of the metadata of an address.
	MetadataURL(address string) string
}

const (
	wellKnown        = "/.well-known/"
	resourceMetadata = "/.well-known/oauth-protected-resource"
)

// challenge adds to a refusal how the client can authenticate (RFC 6750 §3). If the
// request had no token and is Unauthenticated, the challenge names no error. An address that
// is not known has no metadata to point to.
func (x *exchange) challenge(known bool, err error) {
	scheme, _, _ := strings.Cut(x.r.Header.Get("Authorization"), " ")
	tried := strings.EqualFold(scheme, "Bearer")
	code := session.CodeOf(err)
	value := ""
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

// codeForbidden is the JSON-RPC code for a call that the caller's token does not permit.
// MCP 2026-07-28 wants codes of applications outside the range of JSON-RPC.
const codeForbidden = 403

// notOffered refuses a call of a tool that x-dormouse.tools leaves out. It is a response, and
// not a failure of the transport: clients give the latter to their users, not to the model.
func notOffered(server, tool string) error {
	return refusal(http.StatusOK, session.Invalid, wire.CodeInvalidParams,
		fmt.Sprintf("server %q offers no tool %q here: x-dormouse.tools in the servers file leaves it out", server, wire.Clip(tool)))
}

// permit checks that the caller may make all calls of tools in a request with its token.
// If scopes are missing, the error has them in its data, for clients that see no status.
// It is called before anything is written and before a box wakes.
func (o *Options) permit(c host.Caller, address string, msgs []wire.Message) error {
	if (o.SignIn == nil || !c.Scoped) && c.Server.Tools.IsZero() {
		return nil
	}
	var tools []string
	for _, m := range msgs {
		if m.Method == wire.MethodToolsCall {
			name, _ := wire.String(wire.Lookup(m.Params, "name")) // a call of no tool needs no scope of one
			if !c.Server.Tools.Allows(name) {
				return notOffered(c.Server.Name, name)
			}
			tools = append(tools, name)
		}
	}
	if len(tools) == 0 || o.SignIn == nil || !c.Scoped {
		return nil
	}
	err := o.SignIn.Permit(session.Identity{Scopes: c.Scopes, Scoped: true, ToolRules: c.ToolRules}, c.Server.Name, tools)
	if session.CodeOf(err) != session.Forbidden {
		return err
	}
	p := refusal(http.StatusForbidden, session.Forbidden, codeForbidden, problemOf(err).rpc.Message)
	p.cause = err
	var lacks interface{ Wanted() []string }
	if !errors.As(err, &lacks) {
		return p
	}
	p.rpc.Data = map[string]string{
		"error": "insufficient_scope", "scope": strings.Join(lacks.Wanted(), " "), "resource_metadata": o.SignIn.MetadataURL(address),
	}
	return p
}

// refusedAll returns the same error as the answer to each request in msgs.
func refusedAll(msgs []wire.Message, err *wire.Error) (answers [][]byte) {
	for _, m := range msgs {
		if m.Kind == wire.Request {
			answers = append(answers, wire.ErrorResponse(m.ID, err))
		}
	}
	return answers
}

// permit calls [Options.permit], and adds the header WWW-Authenticate to a refusal.
func (x *exchange) permit(msgs []wire.Message) error {
	err := x.opts.permit(x.caller, x.address(x.r.URL.Path), msgs)
	if err != nil {
		x.challenge(true, err)
	}
	return err
}

// isDiscovery reports whether a request asks how to sign in. Pages of any origin may
// ask, because the answer is public.
func (x *exchange) isDiscovery() bool {
	return x.opts.SignIn != nil && strings.Contains(x.r.URL.Path, wellKnown) && ServesHost(x.opts.AllowedHosts, x.r.Host)
}

// discovery serves the metadata of each server below [resourceMetadata]. The host as a
// whole has none: a token for the host would be good for every server. Nor does discovery
// serve metadata of an authorization server. A client that found such metadata here would
// refuse it, because the issuer in it is not this host.
func (x *exchange) discovery() error {
	h := x.w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if x.r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", methodsDiscovery)
		h.Set("Access-Control-Allow-Headers", allowedHeaders(x.r.Header, "Accept", wire.HeaderProtocolVersion))
		h.Set("Access-Control-Max-Age", "86400")
		x.empty(http.StatusNoContent)
		return nil
	}
	nothing := refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, "there is nothing at this path; the metadata of a server is at "+resourceMetadata+"/<server>/mcp")
	if asksForCard(x.r.URL.Path) {
		nothing = noCard()
	}
	path, ours := strings.CutPrefix(x.r.URL.Path, resourceMetadata)
	server, resource, ok := split(path)
	if name, of, grouped := groupOf(path); ours && grouped && (of == "mcp" || of == "sse") && x.opts.Groups != nil {
		if _, known := x.opts.Groups(name); !known {
			return nothing
		}
		if server = "all servers"; name != "" {
			server = "the servers of " + name
		}
	} else if !ours || !ok || resource != "mcp" && resource != "sse" {
		return nothing
	} else if _, known := x.opts.Servers(server); !known {
		return nothing
	}
	if x.r.Method != http.MethodGet && x.r.Method != http.MethodHead {
		return notAllowed(methodsDiscovery, "this method is not served here; use GET")
	}
	h.Set("Cache-Control", "public, max-age=300")
	x.json(http.StatusOK, x.opts.SignIn.Metadata(server, x.address(path)))
	return nil
}

// maxQuery is the longest query that queried repeats, in bytes.
const maxQuery = 512

// address returns the address that a client called when it was refused at path, or when
// it asked for the metadata of path. A client posts messages of HTTP+SSE, and asks for
// tickets, at paths of their own. For these, address returns the address of the event
// stream, or of the server.
func (x *exchange) address(path string) string {
	if _, resource, ok := groupOf(path); ok {
		address := strings.TrimSuffix(path, "/")
		switch begin := strings.TrimSuffix(address, resource); resource {
		case "message":
			return begin + "sse"
		case "ticket":
			return begin + "mcp"
		}
		return queried(x.r, address, path)
	}
	server, resource, _ := split(path)
	switch resource {
	case "message":
		return "/" + server + "/sse"
	case "ticket":
		return "/" + server + "/mcp"
	}
	return queried(x.r, "/"+server+"/"+resource, path)
}

// queried returns an address as the client wrote it: with the slash after path, and with
// the query.
func queried(r *http.Request, address, path string) string {
	if strings.HasSuffix(path, "/") {
		address += "/"
	}
	// Leave out a query that would change in a header or in JSON. No client sends such a
	// query.
	plain := func(c rune) bool { return c > ' ' && c <= '~' && !strings.ContainsRune(`"\<>`, c) }
	q := r.URL.RawQuery
	if q != "" && len(q) <= maxQuery && strings.IndexFunc(q, func(c rune) bool { return !plain(c) }) < 0 {
		address += "?" + q
	}
	return address
}
