package credentials

import (
	"fmt"
	"net/http"
	"strings"
)

// escape escapes a text for HTML. Package html would link its table of entities into the
// functions for calls, which show no pages.
func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(s)
}

// layout has the title, the nonce of its style and the contents. Scripts run on no page.
const layout = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%[1]s</title>
<style nonce="%[2]s">
body{font:16px/1.5 system-ui,sans-serif;max-width:32em;margin:3em auto;padding:0 1em;color:#222;background:#fff}
button{font:inherit;padding:.5em 1.2em;margin-right:.5em}
input{font:inherit;padding:.3em;width:100%%;box-sizing:border-box}
pre{overflow-wrap:anywhere;white-space:pre-wrap;background:#f4f4f4;padding:.6em}
</style></head><body><h1>%[1]s</h1>
%[3]s</body></html>
`

// page writes a page. Its Content-Security-Policy lets forms lead to any https address: a
// browser also checks form-action for the redirect to a third party.
func page(w http.ResponseWriter, plain bool, status int, title, body string) {
	nonce, targets := random(16), "'self' https:"
	if plain {
		targets += " http://127.0.0.1:* http://localhost:*"
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; style-src 'nonce-%s'; form-action %s; frame-ancestors 'none'; base-uri 'none'", nonce, targets))
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, layout, escape(title), nonce, body)
}

func text(s string) string { return "<p>" + escape(s) + "</p>\n" }

// hidden returns the fields that every form of a visit has.
func (v pageRequest) hidden(csrf string) string {
	field := func(name, value string) string {
		return fmt.Sprintf(`<input type="hidden" name="%s" value="%s">`, name, escape(value))
	}
	return field("csrf", csrf) + field("server", v.server) + field("e", v.sealed)
}

// ticketForm has the form into which users paste a ticket that they got with their API
// key.
func ticketForm(v pageRequest, csrf, publicURL string) string {
	return text("Show with your API key who you are: get a ticket for the server, which is good for a minute, and paste it here.") +
		fmt.Sprintf("<pre>curl -X POST -H \"Authorization: Bearer $KEY\" %s/%s/ticket</pre>\n", escape(publicURL), escape(v.server)) +
		fmt.Sprintf(`<form method="post" action="%s">%s<p><label>Ticket <input name="ticket" autocomplete="off" required autofocus></label></p><button>Go on</button></form>`+"\n", pathPage, v.hidden(csrf))
}

func providerForm(v pageRequest, name, title, why string, p Provider, there bool, csrf string) string {
	fields, button := "", "Connect"
	if there {
		button = "Connect anew"
	}
	switch {
	case p.Exchange != nil:
		fields, button = text("Signing in gives this access."), "Sign in again"
		if why != "" {
			fields = text(why)
		}
	case !p.oauth():
		fields = `<p><label>API key or token <input name="secret" type="password" autocomplete="off"></label></p>`
		if p.Help != "" {
			fields = text(p.Help) + fields
		}
	}
	actions := fmt.Sprintf(`<button name="action" value="connect">%s</button>`, button)
	if there {
		actions += `<button name="action" value="remove">Remove</button>`
	}
	return fmt.Sprintf(`<h2>%s</h2><form method="post" action="%s">%s<input type="hidden" name="provider" value="%s">%s%s</form>`+"\n",
		escape(title), pathPage, v.hidden(csrf), escape(name), fields, actions)
}
