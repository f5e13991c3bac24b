package authserver

import (
	"cmp"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
)

type pageData struct {
	Title, Text string // Text: a page with a message only

	// Fields of the consent page.
	Client, Site, Host, Server string
	Scopes, Servers            []string
	Members                    []string // the servers of the group that the client asks for
	Groups                     []string // addresses, besides Servers
	Request                    string
	Program                    bool // the answer goes to a program on the user's machine

	// Field of the development sign-in.
	State string
}

// layout has the title, the nonce of its style and the contents. Scripts run on no page.
const layout = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%[1]s</title>
<style nonce="%[2]s">
body{font:16px/1.5 system-ui,sans-serif;max-width:32em;margin:3em auto;padding:0 1em;color:#222;background:#fff}
button{font:inherit;padding:.5em 1.2em;margin-right:.5em}
input,select{font:inherit;padding:.3em;width:100%%;box-sizing:border-box}
.w{border-left:4px solid #c60;padding-left:.8em}
dt{color:#666}dd{margin:0 0 .6em;overflow-wrap:anywhere}
</style></head><body><h1>%[1]s</h1>
%[3]s</body></html>
`

const nameForm = `<p>This sign-in is for development: it takes any name, and works on this machine only.</p>
<form method="post" action="/login"><input type="hidden" name="state" value="%s">
<p><label>Name <input name="name" value="ada" pattern="[A-Za-z0-9][A-Za-z0-9._\-]*" maxlength="64" required autofocus></label></p>
<p><label>Groups, with commas between <input name="groups" maxlength="200"></label></p>
<button>Sign in</button></form>
`

const (
	consentFacts = `<p><b>%s</b> asks to use %s in your name.</p>
<dl>%s%s
<dt>You will be sent to</dt><dd><b>%s</b></dd>
<dt>It may</dt><dd>%s</dd>
</dl>
`
	consentMembers = `<dt>The servers</dt><dd>%s: those of them that you may use, and those that their operator adds</dd>
`
	consentSite    = `<dt>The client is from</dt><dd>%s</dd>`
	consentUnknown = `<dt>The client</dt><dd>has given its name itself; nobody has checked it</dd>`
	consentWarning = `<p class="w">The answer goes to a program on the computer of this browser. Allow it only if you have just started that program yourself.</p>
`
	consentForm = `<form method="post" action="/authorize"><input type="hidden" name="request" value="%s">
%s<button name="answer" value="allow">Allow</button><button name="answer" value="deny">Refuse</button></form>
`
)

// body returns the contents of a page. It escapes every text that is not ours.
//
// html/template would link every method of every type into the function, because it
// calls methods by name.
func (d pageData) body() string {
	esc := html.EscapeString
	switch {
	case d.Text != "":
		return "<p>" + esc(d.Text) + "</p>\n"
	case d.Request == "":
		return fmt.Sprintf(nameForm, esc(d.State))
	}
	server, members, from, warning, choice := "a server", "", consentUnknown, "", ""
	if d.Server != "" {
		server = "the server <b>" + esc(d.Server) + "</b>"
	}
	if len(d.Members) > 0 {
		server = "several servers"
		members = fmt.Sprintf(consentMembers, esc(strings.Join(d.Members, ", ")))
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
	return fmt.Sprintf(consentFacts, name, server, members, from, esc(d.Host), esc(strings.Join(d.Scopes, ", "))) + warning + fmt.Sprintf(consentForm, esc(d.Request), choice)
}

// page writes a page. redirect is where its form may lead in the end, "" for nowhere.
//
// A browser also checks the policy for all redirects that follow a form. A provider may
// redirect within many hosts of its own, so any https address is allowed.
func (b *browsers) page(w http.ResponseWriter, status int, redirect string, data pageData) {
	nonce := random(16)
	targets := "'self' https:"
	if u, err := url.Parse(redirect); err == nil && redirect != "" {
		switch {
		case isPrivate(u):
			targets += " " + u.Scheme + ":"
		case u.Scheme == "http":
			targets += " http://" + u.Host
		}
	}
	if b.plain && b.origin != "" {
		targets += " " + b.origin
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; style-src 'nonce-%s'; form-action %s; frame-ancestors 'none'; base-uri 'none'", nonce, targets))
	h.Set("X-Frame-Options", "DENY")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, layout, html.EscapeString(data.Title), nonce, data.body())
}
