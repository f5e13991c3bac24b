package credentials

import (
	"fmt"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

// page writes a page. Its Content-Security-Policy lets forms lead to any https address: a
// browser also checks form-action for the redirect to a third party.
func (p *Pages) page(w http.ResponseWriter, status int, title, body string) {
	targets := "'self' https:"
	if p.cookies.Plain {
		targets += " http://127.0.0.1:* http://localhost:*"
	}
	w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
	webpage.Write(w, status, webpage.Page{Title: title, Body: body, Forms: targets})
}

// hidden returns the hidden fields that every form has.
func (v pageRequest) hidden(csrf string) string {
	field := func(name, value string) string {
		return fmt.Sprintf(`<input type="hidden" name="%s" value="%s">`, name, webpage.Escape(value))
	}
	return field("csrf", csrf) + field("server", v.server) + field("e", v.sealed)
}

// ticketForm has the form into which users paste a ticket that they got with their API
// key.
func ticketForm(v pageRequest, csrf, publicURL string) string {
	return webpage.Text("Show with your API key who you are: get a ticket for the server, which is good for a minute, and paste it here.") +
		fmt.Sprintf("<pre>curl -X POST -H \"Authorization: Bearer $KEY\" %s/%s/ticket</pre>\n", webpage.Escape(publicURL), webpage.Escape(v.server)) +
		fmt.Sprintf(`<form method="post" action="%s">%s<p><label>Ticket <input name="ticket" autocomplete="off" required autofocus></label></p><div class="row"><button class="first">Go on</button></div></form>`+"\n", pathPage, v.hidden(csrf))
}

func providerForm(v pageRequest, name, title, why string, p Provider, there bool, csrf string) string {
	fields, button := "", "Connect"
	if there {
		button = "Connect anew"
	}
	switch {
	case p.Exchange != nil:
		fields, button = webpage.Text("Signing in gives this access."), "Sign in again"
		if why != "" {
			fields = webpage.Text(why)
		}
	case !p.oauth():
		fields = `<p><label>API key or token <input name="secret" type="password" autocomplete="off"></label></p>`
		if p.Help != "" {
			fields = webpage.Text(p.Help) + fields
		}
	}
	actions := fmt.Sprintf(`<button class="first" name="action" value="connect">%s</button>`, button)
	if there {
		actions += `<button name="action" value="remove">Remove</button>`
	}
	return fmt.Sprintf(`<form method="post" action="%[2]s"><h2>%[1]s</h2>%[3]s<input type="hidden" name="provider" value="%[4]s">%[5]s<div class="row">%[6]s</div></form>`+"\n",
		webpage.Escape(title), pathPage, v.hidden(csrf), webpage.Escape(name), fields, actions)
}
