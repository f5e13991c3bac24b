// Package webpage writes the small pages that people get in a browser: at the address of a server, at
// the sign-in, and where they connect accounts at third parties. The pages load nothing, and run no
// script.
package webpage

import (
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strings"
)

//go:embed style.css
var style string

// Page is the content that Write puts between the head and the foot that all pages share.
type Page struct {
	Title string // plain text
	Body  string // HTML; text from outside this program must have gone through [Escape]
	// Forms says to which URLs the page's forms may lead, in the syntax of the CSP directive
	// form-action; "" for a page without forms. A browser also checks each redirect that follows.
	Forms string
	Wide  bool // the page has lists, and takes more of the window
}

// Write sends a page as the answer to a request. Its headers forbid frames and caches.
func Write(w http.ResponseWriter, status int, p Page) {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw) // never fails
	nonce := base64.RawURLEncoding.EncodeToString(raw)
	forms := p.Forms
	if forms == "" {
		forms = "'none'"
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+nonce+"'; form-action "+forms+"; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	class := ""
	if p.Wide {
		class = ` class="wide"`
	}
	// If the browser has closed the connection, nobody misses the page.
	_, _ = io.WriteString(w, `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark"><title>`+Escape(p.Title)+` · Dormouse</title>
<style nonce="`+nonce+`">`+style+`</style></head>
<body><main`+class+`><p class="mark"><i></i>Dormouse</p>
<h1>`+Escape(p.Title)+`</h1>
`+p.Body+`</main></body></html>
`)
}

// Escape escapes a text for HTML, also inside of an attribute in quotes. It does the work of package
// html, whose table of entities would make the Lambda functions larger.
func Escape(text string) string { return escaper.Replace(text) }

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;")

// Text returns a paragraph of plain text.
func Text(text string) string { return "<p>" + Escape(text) + "</p>\n" }

// Refusal returns why the query of an OAuth redirect brings no code: the error and the description
// that the authorization server gives. It returns "" if the query brings a code.
func Refusal(q url.Values) string {
	switch code, why := q.Get("error"), q.Get("error_description"); {
	case code != "" && why != "":
		return "it says " + ASCII(code+": "+why)
	case code != "":
		return "it says " + ASCII(code)
	case q.Get("code") == "":
		return "there is no code in its answer"
	}
	return ""
}

// ASCII returns the first 512 bytes of a text, with "?" for each character that the errors of OAuth
// may not have (RFC 6749 §5.2).
func ASCII(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return '?'
		}
		return c
	}, text[:min(len(text), 512)])
}
