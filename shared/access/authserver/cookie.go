package authserver

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

// browsers keeps data in cookies of the users' browsers, and shows them pages.
type browsers struct {
	seals
	cookies webpage.Cookies
	origin  string // the result of [Login.Origin]
}

const (
	cookieCSRF    = "dm_csrf"
	cookieConsent = "dm_consent"
	cookieFlow    = "dm_flow_"
)

// consent is one thing that the user of a browser has agreed to.
type consent struct {
	What   string   `json:"w"` // the result of consentID: the client, its host and the server
	Scopes []string `json:"s"`
	Until  int64    `json:"x"`
}

const (
	consentLife = 30 * 24 * time.Hour
	maxConsents = 12
)

// consentID returns a hash of the client, the host where the client gets its code, and the server.
func consentID(who client, req request) string {
	return idText(sum(strings.Join([]string{who.id, who.mark, hostOf(req.Redirect), req.Server}, "\x00")))[:handleChars]
}

func (b *browsers) consents(r *http.Request) (all []consent) {
	_ = b.seals[forConsent].OpenJSON(b.cookies.Get(r, cookieConsent), &all) // without a cookie there is no consent
	now := time.Now().Unix()
	return slices.DeleteFunc(all, func(c consent) bool { return c.Until <= now })
}

// agreed reports whether the user of this browser has agreed to everything that a request asks for.
func (b *browsers) agreed(r *http.Request, who client, req request) bool {
	id := consentID(who, req)
	return !reachesProgram(req.Redirect) && slices.ContainsFunc(b.consents(r), func(c consent) bool {
		return c.What == id && !slices.ContainsFunc(req.Scopes, func(s string) bool { return !slices.Contains(c.Scopes, s) })
	})
}

// remember keeps a consent in the browser, so that its user is not asked again. It keeps none if the
// code goes to a program on the user's machine: next time, another program may listen on loopback, or
// have claimed the scheme (RFC 8252 §8.6).
func (b *browsers) remember(w http.ResponseWriter, r *http.Request, who client, req request) {
	if reachesProgram(req.Redirect) {
		return
	}
	id := consentID(who, req)
	all := slices.DeleteFunc(b.consents(r), func(c consent) bool { return c.What == id })
	all = append(all, consent{id, req.Scopes, time.Now().Add(consentLife).Unix()})
	b.cookies.Set(w, cookieConsent, b.seals[forConsent].SealJSON(all[max(0, len(all)-maxConsents):]), consentLife)
}
