package transport

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/clientfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// A person who opens an address in a browser gets a page. It shows the server, how each client connects,
// where to sign in, and the console. The page has the status and the reason that a client gets.

// consolePath is the path of the console, on one machine and on AWS.
const consolePath = "/console"

// maxAbout and maxTool bound what a page repeats of a server, in bytes.
const (
	maxAbout = 600
	maxTool  = 240
)

func wantsPage(r *http.Request) bool {
	h := r.Header
	accept := h.Values("Accept")
	return r.Method == http.MethodGet && named(accept, "text/html") && !named(accept, wire.MediaSSE) &&
		h.Get(wire.HeaderSessionID) == "" && h.Get(wire.HeaderProtocolVersion) == "" && h.Get(wire.HeaderLastEventID) == ""
}

// pageText is the body of a page that is being written.
type pageText struct{ strings.Builder }

// say adds a line of HTML. Each % in it stands for the next argument, which it escapes.
func (p *pageText) say(html string, args ...string) {
	for _, a := range args {
		before, after, _ := strings.Cut(html, "%")
		p.WriteString(before + webpage.Escape(a))
		html = after
	}
	p.WriteString(html + "\n")
}

// links lists servers, each with a link to its page.
func (p *pageText) links(x *exchange, names []string) {
	p.say(`<ul class="list">`)
	for _, name := range names {
		p.say(`<li><a href="%">%</a></li>`, prefix(x.r)+"/"+url.PathEscape(name)+"/mcp", name)
	}
	p.say(`</ul>`)
}

// page answers with a page. The argument why is the reason for a refusal. If it is "", x.caller
// must be set, except for the path /.
func page(x *exchange, status int, why string) {
	title, of, url := subjectOf(x)
	var p pageText
	stranger := storage.CodeOf(x.err) == storage.Unauthenticated && x.r.Header.Get("Authorization") == ""
	if why != "" && !stranger { // a caller who has sent no credential has made no mistake yet
		p.say(`<p class="bad">%</p>`, why)
	}
	refused := storage.CodeOf(x.err) == storage.Unauthenticated || storage.CodeOf(x.err) == storage.Forbidden
	switch {
	case of == "" || status != http.StatusOK && !refused || !isName(of):
		title = "Dormouse"
		p.say(`<p>Dormouse hosts MCP servers here. Each has an address of its own for your client: <code>%</code></p>`, ownURL(x.r, "/NAME/mcp"))
		listServers(x, &p)
	default:
		if status == http.StatusOK {
			describe(x, &p, &title)
		} else {
			p.say(`<p>Its tools are shown to those who may use it.</p>`)
		}
		p.say(`<pre>%</pre>`, url)
		x.signInHere(&p)
		connectClients(&p, clientfile.Server{Name: of, URL: url})
	}
	p.say(`<h2>For operators</h2>`)
	p.say(`<p>The <a href="%">console</a> shows servers, calls, people and keys. On the machine that hosts them, <code>dormouse open</code> opens it signed in.</p>`, prefix(x.r)+consolePath)
	x.status = status
	webpage.Write(x.w, status, webpage.Page{Title: title, Body: p.String(), Wide: true})
}

// subjectOf returns what a request is for: its title for people, its name in a client's
// configuration, and its URL. They are "" if the path names neither a server nor a group.
func subjectOf(x *exchange) (title, name, url string) {
	path := strings.TrimSuffix(x.r.URL.Path, "/")
	if group, resource, ok := groupOf(path); ok && (resource == "mcp" || resource == "sse") {
		if title = "All servers"; group != "" {
			title = "The servers of " + group
		}
		return title, cmp.Or(group, "dormouse"), ownURL(x.r, path)
	}
	if server, resource, ok := split(path); ok && (resource == "mcp" || resource == "sse") {
		return server, server, ownURL(x.r, path)
	}
	return "", "", ""
}

func listServers(x *exchange, p *pageText) {
	names := x.opts.usable(x.r)
	if len(names) == 0 {
		return
	}
	p.say(`<h2>Servers</h2>`)
	p.links(x, names)
	if _, ok := x.opts.groupNamed("", nil); ok {
		p.say(`<p>All of them are at one address, too: <a href="%">%</a></p>`, prefix(x.r)+"/mcp", ownURL(x.r, "/mcp"))
	}
}

// describe says what the server, or each server of the group, is and can do.
func describe(x *exchange, p *pageText, title *string) {
	if x.group != nil {
		p.say(`<p>The tools of several servers at one address.</p>`)
		var names []string
		for _, c := range x.members {
			names = append(names, c.Server.Name)
		}
		p.links(x, names)
		return
	}
	known, err := x.opts.Host.Profile(x.ctx(), x.caller)
	if err != nil {
		known = sessions.Profile{} // the page is still good for connecting a client
	}
	name := *title
	if *title = cmp.Or(known.Title, name); *title != name || known.Version != "" {
		p.say(`<p class="muted">%</p>`, strings.TrimSpace(name+" "+known.Version))
	}
	if known.About != "" {
		p.say(`<p>%</p>`, clipped(known.About, maxAbout))
	}
	if len(known.Tools) == 0 {
		p.say(`<p class="muted">Its tools are shown here once a client has asked for them.</p>`)
		return
	}
	p.say(`<h2>Tools</h2>`)
	p.say(`<ul class="list">`)
	for _, t := range known.Tools {
		p.say(`<li><code>%</code>`, t.Name)
		if text := cmp.Or(t.Description, t.Title); text != "" {
			p.say(`<p>%</p>`, clipped(text, maxTool))
		}
		p.say(`</li>`)
	}
	p.say(`</ul>`)
}

func clipped(text string, most int) string {
	text = strings.TrimSpace(text)
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// signInHere says what a client needs besides the address.
func (x *exchange) signInHere(p *pageText) {
	switch {
	case x.opts.SignIn != nil:
		p.say(`<p>Your client opens a page in the browser where you sign in. A client without a browser needs an API key from the operator.</p>`)
	case storage.CodeOf(x.err) == storage.Unauthenticated:
		p.say(`<p>Callers need an API key, which their client sends as <code>Authorization: Bearer KEY</code>. The operator makes one in the console, or with <code>dormouse keys create NAME --server SERVER</code>.</p>`)
	}
}

// connectClients writes a button or a text for each client that package clientfile knows.
func connectClients(p *pageText, s clientfile.Server) {
	p.say(`<h2>Connect a client</h2>`)
	p.say(`<div class="row">`)
	for _, c := range clientfile.Clients() {
		for _, way := range c.Pastes(s) {
			if way.How == "click" && isLink(way.Text) {
				p.say(`<a class="button" href="%">Add to %</a>`, way.Text, c.Title)
			}
		}
	}
	p.say(`</div>`)
	for _, c := range clientfile.Clients() {
		p.say(`<details><summary>%</summary>`, c.Title)
		for _, way := range c.Pastes(s) {
			switch {
			case way.How == "run":
				p.say(`<p>In a terminal:</p><pre>%</pre>`, way.Text)
			case way.How == "click" && !isLink(way.Text):
				p.say(`<p>%</p>`, way.Text)
			case way.How == "file":
				if file, found := strings.CutPrefix(way.File, "CONFIG/"); found {
					p.say(`<p>In <code>~/.config/%</code> (macOS: <code>~/Library/Application Support/%</code>):</p><pre>%</pre>`, file, file, way.Text)
				} else {
					p.say(`<p>In <code>%</code>:</p><pre>%</pre>`, way.File, way.Text)
				}
			}
		}
		p.say(`</details>`)
	}
}

// isName reports whether a text can be the name of a server. The page shows commands with the name from
// the path, which a stranger's link may have made up.
func isName(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
	})
}

// isLink reports whether a text is a link that a client opens, and not a description of a way
// through menus.
func isLink(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Scheme != ""
}

// ownURL returns the URL of a path of this endpoint, as far as the request tells.
func ownURL(r *http.Request, path string) string {
	scheme, h := "http", r.Header
	if r.TLS != nil || strings.EqualFold(h.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return scheme + "://" + r.Host + prefix(r) + path
}
