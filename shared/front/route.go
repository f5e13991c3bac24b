package front

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Clients of every protocol version come to one family of paths:
//
//	/<server>/mcp      POST            Streamable HTTP: a message
//	                   GET             the standalone stream, or one that goes on
//	                   GET             with no session and no version: as /<server>/sse
//	                   DELETE          the end of a session
//	/<server>/sse      GET             HTTP+SSE: the event stream
//	/<server>/message  POST            HTTP+SSE: a message
//	/<server>/ticket   POST            a ticket for one WebSocket connection
//	/<server>/connect  GET             sends a browser to the page where users connect third parties
//
// [Group] has the addresses of several servers.
//
// A client that tries the newest transport first may post to the URL of an event stream: 405
// tells it to try the next one.

const (
	methods        = "GET, POST, DELETE, OPTIONS"
	methodsNoGet   = "POST, DELETE, OPTIONS" // the server has nothing to push
	methodsModern  = "POST, OPTIONS"         // the modern era has no sessions and no streams to resume
	methodsSSE     = "GET, OPTIONS"
	methodsMessage = "POST, OPTIONS"

	methodsDiscovery = "GET, HEAD, OPTIONS"
)

// destination is what a request is for.
type destination struct {
	name  string // of a server, or the address of a group
	group *Group // nil: a server
	serve func() error
}

// route returns what the path names, with the function that serves the request.
func (x *exchange) route() (to destination, err error) {
	name, resource, ok := groupOf(x.r.URL.Path)
	if ok && (resource != "ticket" || x.opts.Tickets != nil) {
		if g, known := x.opts.groupNamed(name, x.r.URL.Query()); known {
			to.name, to.group = groupAddress(name), &g
		}
	}
	if to.group == nil {
		if ok && name != "" && resource != "ticket" {
			return to, refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, "there is no group "+wire.Clip(name)+"; check the name behind /g/")
		}
		if asksForCard(x.r.URL.Path) {
			return to, noCard()
		}
		if to.name, resource, ok = split(x.r.URL.Path); !ok {
			resource = ""
		}
	}
	allowed := ""
	var verbs map[string]func(*exchange) error
	switch {
	case resource == "mcp":
		allowed, verbs = methods, map[string]func(*exchange) error{http.MethodPost: post, http.MethodGet: get, http.MethodDelete: end}
	case resource == "sse":
		allowed, verbs = methodsSSE, map[string]func(*exchange) error{http.MethodGet: getSSE}
	case resource == "message":
		allowed, verbs = methodsMessage, map[string]func(*exchange) error{http.MethodPost: postSSE}
	case resource == "ticket" && x.opts.Tickets != nil:
		allowed, verbs = methodsMessage, map[string]func(*exchange) error{http.MethodPost: (*exchange).ticket}
	}
	serve := verbs[x.r.Method]
	switch {
	case allowed == "":
		return to, refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, "there is nothing at this path; servers are at /<server>/mcp")
	case serve == nil:
		return to, notAllowed(allowed, "this method is not served here; use "+strings.TrimSuffix(allowed, ", OPTIONS"))
	}
	to.serve = func() error { return serve(x) }
	return to, nil
}

// asksForCard reports whether a path is one at which scanners look for what a host serves:
// /.well-known/mcp, mcp.json and mcp/server-card.json below /.well-known/.
func asksForCard(path string) bool {
	rest, ok := strings.CutPrefix(path, wellKnown+"mcp")
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '/')
}

func noCard() *problem {
	return refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, "this host has no card of its servers; they are at /<server>/mcp, for those who know a name")
}

// split splits "/<server>/<resource>", with or without a slash at its end.
func split(path string) (server, resource string, ok bool) {
	path, rooted := strings.CutPrefix(strings.TrimSuffix(path, "/"), "/")
	server, resource, ok = strings.Cut(path, "/")
	return server, resource, ok && rooted && server != "" && !strings.Contains(resource, "/")
}

// connect sends a browser to the page of another function, where the user of a server
// connects third parties. It reports whether the request was for that page.
func (x *exchange) connect() bool {
	server, resource, ok := split(x.r.URL.Path)
	if !ok || resource != "connect" || x.r.Method != http.MethodGet {
		return false
	}
	if of, known := x.opts.Servers(server); !known || len(of.Providers) == 0 {
		return false
	}
	to := "../connect?server=" + url.QueryEscape(server)
	if e := x.r.URL.Query().Get("e"); e != "" {
		to += "&e=" + url.QueryEscape(e)
	}
	x.w.Header().Set("Location", to)
	x.w.Header().Set("Cache-Control", "no-store")
	x.w.Header().Set("Referrer-Policy", "no-referrer")
	x.empty(http.StatusSeeOther)
	return true
}
