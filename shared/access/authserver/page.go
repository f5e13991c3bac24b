package authserver

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

type pageData struct {
	Title, Text string // if Text is set, the page has only this message

	// Fields of the consent page.
	Client, Site, Host, Server string
	Servers                    []string
	Adds                       []addition // what the optional scopes of the request add
	Provider                   string     // where the user signs in next; "" on a machine for development
	Members                    []string   // the servers of the group, if the client asks for one
	Groups                     []string   // addresses of groups that the user can choose, besides Servers
	Request                    string
	Program                    bool // the answer goes to a program on the user's machine

	// Field of the development sign-in.
	State string
}

const nameForm = `<p>This sign-in is for development: it takes any name, and works on this machine only.</p>
<form method="post" action="/login"><input type="hidden" name="state" value="%s">
<p><label>Name <input name="name" value="ada" pattern="[A-Za-z0-9][A-Za-z0-9._\-]*" maxlength="64" required autofocus></label></p>
<p><label>Groups, with commas between <input name="groups" maxlength="200"></label></p>
<div class="row"><button class="first">Sign in</button></div></form>
`

const (
	consentFacts = `<p><b>%s</b> asks to use %s.</p>
<h2>If you allow it</h2>
<dl><dt>It can</dt>%s
<dt>In whose name</dt><dd>%s</dd>
<dt>For how long</dt><dd>While it is used at least every 30 days, and for 90 days at most. The operator can end it before.</dd>
</dl>
<h2>Who asks</h2>
<dl>%s
<dt>You will be sent to</dt><dd><b>%s</b></dd>
</dl>
`
	consentMembers = `<dd>Use these servers: %s. It can use those of them that you may use, and those that their operator adds</dd>
`
	consentSite    = `<dt>The client is from</dt><dd>%s</dd>`
	consentUnknown = `<dt>The client</dt><dd>has given its name itself; nobody has checked it</dd>`
	consentWarning = `<p class="warn">The answer goes to a program on the computer of this browser. Allow it only if you have just started that program yourself.</p>
`
	consentForm = `<form method="post" action="/authorize"><input type="hidden" name="request" value="%s">
%s<div class="row"><button class="first" name="answer" value="allow">Allow</button><button name="answer" value="deny">Refuse</button></div></form>
`
	// consentUse says what every token allows.
	consentUse = `<dd>See its tools, prompts and resources, and call every tool that you may call</dd>
`
	// consentScope says what an optional scope adds. Fmt fills in the name of the scope, the
	// server, and its tools (or patterns such as "list_*").
	consentScope = `<dd>Call these tools of %[2]s, too: %[3]s (<code>%[1]s</code>)</dd>
`
)

// abilities says in words what a client can do with the scopes that it asks for.
func (d pageData) abilities() string {
	text := consentUse
	if len(d.Members) > 0 {
		text = fmt.Sprintf(consentMembers, webpage.Escape(strings.Join(d.Members, ", "))) + strings.Replace(text, "its tools", "their tools", 1)
	}
	for _, a := range d.Adds {
		text += fmt.Sprintf(consentScope, webpage.Escape(a.scope), webpage.Escape(a.server), webpage.Escape(strings.Join(a.tools, ", ")))
	}
	return text
}

// addition is an optional scope, with the tools of a server that it adds.
type addition struct {
	scope, server string
	tools         []string
}

// additions returns the optional scopes that a request asks for, with the tools that each adds.
func (b *Server) additions(req request) (all []addition) {
	for _, member := range b.settings.Members(req.Server) {
		for _, scope := range req.Scopes {
			if tools := b.settings.Scopes[member][scope]; len(tools) > 0 {
				all = append(all, addition{scope, member, tools})
			}
		}
	}
	return all
}

// body returns the contents of a page. It escapes every text that comes from a client or from the
// settings.
//
// body does not use html/template, which would link every method of every type into the program.
func (d pageData) body() string {
	esc := webpage.Escape
	switch {
	case d.Text != "":
		return "<p>" + esc(d.Text) + "</p>\n"
	case d.Request == "":
		return fmt.Sprintf(nameForm, esc(d.State))
	}
	server, from, warning, choice := "a server", consentUnknown, "", ""
	if d.Server != "" {
		server = "the server <b>" + esc(d.Server) + "</b>"
	}
	if len(d.Members) > 0 {
		server = "several servers"
	}
	if d.Site != "" {
		from = fmt.Sprintf(consentSite, esc(d.Site))
	}
	if d.Program {
		warning = consentWarning
	}
	if len(d.Servers) > 0 {
		choice = "<p><label>Server <select name=\"server\">"
		for _, s := range d.Servers {
			choice += "<option>" + esc(s) + "</option>"
		}
		for _, g := range d.Groups {
			choice += `<option value="` + esc(g) + `">all servers at ` + esc(g) + "</option>"
		}
		choice += "</select></label></p>\n"
	}
	name := cmp.Or(esc(d.Client), "A client without a name")
	whose := "Yours. You sign in next."
	if d.Provider != "" {
		whose = "Yours. You sign in next, at " + esc(d.Provider) + "."
	}
	return fmt.Sprintf(consentFacts, name, server, d.abilities(), whose, from, esc(d.Host)) + warning + fmt.Sprintf(consentForm, esc(d.Request), choice)
}

// page writes a page. The argument redirect is the URI to which the browser may be sent after the
// form of the page, "" for none.
//
// A browser also applies the Content-Security-Policy of a page to all redirects that follow its
// form. A provider may redirect within many hosts of its own, so any https address is allowed.
func (b *browsers) page(w http.ResponseWriter, status int, redirect string, data pageData) {
	targets := "'self' https:"
	if u, err := url.Parse(redirect); err == nil && redirect != "" {
		switch {
		case isPrivate(u):
			targets += " " + u.Scheme + ":"
		case u.Scheme == "http":
			targets += " http://" + u.Host
		}
	}
	if b.cookies.Plain && b.origin != "" {
		targets += " " + b.origin
	}
	webpage.Write(w, status, webpage.Page{Title: data.Title, Body: data.body(), Forms: targets})
}
