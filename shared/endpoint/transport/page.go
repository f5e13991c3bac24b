package transport

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A person who opens the address of a server in a browser gets a small page. It has the
// status and the reason that a client gets. No client of MCP asks for text/html.

// pagePolicy is the Content-Security-Policy of a page: it loads nothing, and no other page
// may frame it.
const pagePolicy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const pageLayout = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Dormouse</title></head>
<body><h1>Dormouse</h1>
%s</body></html>
`

// wantsPage reports whether a request is that of a browser for a page.
func wantsPage(r *http.Request) bool {
	h := r.Header
	accept := h.Values("Accept")
	return r.Method == http.MethodGet && named(accept, "text/html") && !named(accept, wire.MediaSSE) &&
		h.Get(wire.HeaderSessionID) == "" && h.Get(wire.HeaderProtocolVersion) == "" && h.Get(wire.HeaderLastEventID) == ""
}

// page answers with a page. why says why the request was refused, "" if it was not.
func page(x *exchange, status int, why string) {
	h := x.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	server, resource, ok := split(x.r.URL.Path)
	var body strings.Builder
	esc := html.EscapeString
	say := func(format string, args ...string) {
		escaped := make([]any, len(args))
		for i, a := range args {
			escaped[i] = esc(a)
		}
		_, _ = fmt.Fprintf(&body, format+"\n", escaped...)
	}
	if why != "" {
		say("<p><b>%s</b></p>", why)
	}
	switch {
	case ok && (resource == "mcp" || resource == "sse") && status == http.StatusOK:
		say("<p>This is the address of the MCP server <b>%s</b>. Programs speak the Model Context Protocol here. Give the address to your client:</p>", server)
		say("<pre>%s</pre>", ownURL(x.r, "/"+server+"/"+resource))
		say("<p>For example, in a terminal:</p>")
		say("<pre>claude mcp add --transport http %s %s</pre>", server, ownURL(x.r, "/"+server+"/mcp"))
		say("<p>On the machine that hosts it, <code>dormouse connect CLIENT %s</code> prints what other clients need, and <code>dormouse list</code> the state of all servers.</p>", server)
	default:
		say("<p>Dormouse hosts MCP servers here. Each of them has an address of its own, which you give to your client: <code>%s</code></p>", ownURL(x.r, "/NAME/mcp"))
		if names := x.opts.usable(x.r); len(names) > 0 {
			say("<ul>")
			for _, name := range names {
				say(`<li><a href="/%s/mcp">%s</a></li>`, url.PathEscape(name), name)
			}
			say("</ul>")
		}
	}
	if storage.CodeOf(x.err) == storage.Unauthenticated {
		say("<p>Callers need an API key: <code>dormouse keys create NAME --server SERVER</code> on the machine that hosts it makes one.</p>")
	}
	x.empty(status)
	_, _ = fmt.Fprintf(x.w, pageLayout, body.String()) // a client that has gone misses it
}

// ownURL returns the URL of a path of this endpoint, as far as the request tells.
func ownURL(r *http.Request, path string) string {
	scheme, h := "http", r.Header
	if r.TLS != nil || strings.EqualFold(h.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return scheme + "://" + r.Host + prefix(r) + path
}
