package credentials

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

// SignIn finds out who the user of a browser is. Package authserver implements it.
type SignIn interface {
	// Visitor returns the user of this browser, if they have just signed in for this server.
	Visitor(r *http.Request, server string) (storage.Identity, bool)
	// Visit has the user sign in, and come back to a path of this endpoint with its query.
	Visit(w http.ResponseWriter, r *http.Request, server, back string) error
}

// PagesConfig configures [Pages]. Vault, Providers and Secret are required, and one of
// SignIn, Redeem and Everyone.
type PagesConfig struct {
	Vault *Vault
	// Providers returns the providers of a server. ok is false if the server is not served.
	Providers func(server string) (providers []string, ok bool)
	SignIn    SignIn
	// Redeem uses up the ticket of a user with an API key, if there is no SignIn.
	Redeem func(ctx context.Context, ticket, server string) (storage.Identity, error)
	// Everyone is the identity of all browsers, at an endpoint without authentication.
	Everyone *storage.Identity
	// Connected, if not nil, is called when a user has connected what was asked for.
	Connected func(ctx context.Context, a Asked) error
	Secret    []byte
	Others    [][]byte
	Log       *slog.Logger // gets a line for each request; nil for none
}

// Pages is an http.Handler for the paths of [Paths], where users connect third parties. Before a
// page takes or asks for anything, it makes sure that the user of the browser is the principal
// that was asked. Pages is safe for concurrent use.
type Pages struct {
	PagesConfig
	sealer  *storage.Sealer // seals what is in cookies
	cookies webpage.Cookies
	log     *slog.Logger
}

// Paths of the pages.
const (
	pathPage = "/connect"
	pathBack = "/connected" // where third parties send browsers back
)

// Paths are the paths of [Pages].
func Paths() []string { return []string{pathPage, pathBack} }

// NewPages makes Pages. Errors: Invalid for a secret that is too short.
func NewPages(c PagesConfig) (*Pages, error) {
	sealer, err := storage.NewSealer("upstream cookie", c.Secret, c.Others...)
	if err != nil {
		return nil, err
	}
	return &Pages{
		PagesConfig: c, sealer: sealer, cookies: webpage.Cookies{Plain: strings.HasPrefix(c.Vault.config.PublicURL, "http://")}, log: cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
	}, nil
}

// Redirect returns the redirect URI to register at third parties.
func (p *Pages) Redirect() string { return RedirectOf(p.Vault.config.PublicURL) }

// RedirectOf returns the redirect URI of the endpoint at a URL, which has no slash at its
// end.
func RedirectOf(publicURL string) string { return publicURL + pathBack }

const (
	maxBody    = 64 << 10 // bytes
	visitFor   = 15 * time.Minute
	linkWithin = 15 * time.Minute
)

// refusal is a page that says why something is not done. The field text is for the user; the field
// cause is only logged.
type refusal struct {
	status int
	text   string
	cause  error
}

func (e *refusal) Error() string { return e.text }
func (e *refusal) Unwrap() error { return e.cause }

func bad(text string) *refusal { return &refusal{http.StatusBadRequest, text, nil} }

// ServeHTTP serves one request and logs it, without its query and its body.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	err := p.serve(w, r)
	attrs, level := []any{"method", r.Method, "path", r.URL.Path, "duration_ms", time.Since(begun).Milliseconds()}, slog.LevelInfo
	if err != nil {
		var refused *refusal
		if !errors.As(err, &refused) {
			refused = &refusal{http.StatusServiceUnavailable, "This cannot be done now. Try again in a while.", err}
			w.Header().Set("Retry-After", "2")
		}
		p.page(w, refused.status, "Not connected", webpage.Text(refused.text))
		attrs = append(attrs, "status", refused.status, "error", refused.text)
		if refused.cause != nil {
			level, attrs = slog.LevelWarn, append(attrs, "cause", refused.cause)
		}
	}
	p.log.Log(r.Context(), level, "connect", attrs...)
}

func (p *Pages) serve(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	if u, err := url.Parse(p.Vault.config.PublicURL); err != nil || p.cookies.Plain && !strings.EqualFold(r.Host, u.Host) {
		// Another site could resolve its own name to this machine, and then read our pages.
		return &refusal{http.StatusForbidden, "This endpoint is not served under this name. Use " + p.Vault.config.PublicURL + ".", nil}
	}
	switch {
	case r.URL.Path == pathPage && r.Method == http.MethodGet:
		return p.show(w, r)
	case r.URL.Path == pathPage && r.Method == http.MethodPost:
		return p.answer(w, r)
	case r.URL.Path == pathBack && r.Method == http.MethodGet:
		return p.back(w, r)
	case r.URL.Path == pathPage || r.URL.Path == pathBack:
		h.Set("Allow", "GET, POST")
		return &refusal{http.StatusMethodNotAllowed, "This method is not served here.", nil}
	}
	return &refusal{http.StatusNotFound, "There is nothing at this path.", nil}
}

// pageRequest is one request for the page of a server. A link from [Vault.Ask] also names one
// provider of the server: the one that the user was asked to connect. It need not name the server.
type pageRequest struct {
	server    string
	sealed    string // the sealed Asked of the link, "" for none
	asked     *Asked
	providers []string
	who       storage.Identity
}

// read reads the server of a request, and the Asked that its link carries.
func (p *Pages) read(q url.Values) (pageRequest, error) {
	v := pageRequest{server: q.Get("server"), sealed: q.Get("e")}
	a, ok := p.Vault.opened(v.sealed)
	v.server = cmp.Or(v.server, a.Server)
	providers, served := p.Providers(v.server)
	if !served || len(providers) == 0 {
		return v, &refusal{http.StatusNotFound, "No server of this name uses anything of its users at third parties.", nil}
	}
	v.providers = providers
	if v.sealed == "" {
		return v, nil
	}
	if !ok || a.Server != v.server || !slices.Contains(providers, a.Provider) {
		return v, bad("This link is too old, or was changed. Call the tool again to get a new one.")
	}
	v.asked, v.providers = &a, []string{a.Provider}
	return v, nil
}

// isAsked checks that the user is the one who was asked. Without this check, the author of a link
// could have another user's access connected to the author's own sessions.
func (v pageRequest) isAsked() error {
	if a := v.asked; a != nil && (a.Tenant != v.who.Tenant || a.Principal != v.who.Principal) {
		return &refusal{http.StatusForbidden, "This link was made for another user. Nothing was connected. If somebody sent it to you, do not use it.", nil}
	}
	return nil
}

func (v pageRequest) path() string {
	q := url.Values{"server": {v.server}}
	if v.sealed != "" {
		q.Set("e", v.sealed)
	}
	return pathPage + "?" + q.Encode()
}

// show shows what can be connected. A user who is not known yet is asked first who they are.
func (p *Pages) show(w http.ResponseWriter, r *http.Request) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return bad("This link cannot be read.")
	}
	v, err := p.read(q)
	if err != nil {
		return err
	}
	csrf := p.csrf(w, r)
	who, ok := p.visitor(r, v.server)
	switch {
	case ok:
	case p.SignIn != nil:
		return p.SignIn.Visit(w, r, v.server, v.path())
	default:
		p.page(w, http.StatusOK, "Who are you?", ticketForm(v, csrf, p.Vault.config.PublicURL))
		return nil
	}
	v.who = who
	if err := v.isAsked(); err != nil {
		return err
	}
	has, missing, err := p.Vault.Get(r.Context(), who.Tenant, who.Principal, v.providers)
	if err != nil && storage.CodeOf(err) != storage.Unavailable { // after Unavailable show the page: the user may connect anew
		return err
	}
	if name := v.providers[0]; v.asked != nil && len(has) > 0 && p.Vault.config.Providers[name].Exchange != nil {
		return p.done(w, r, v, name) // the sign-in was all that this provider needs
	}
	p.list(w, v, has, missing, csrf)
	return nil
}

// list shows the providers of a request, each with a form.
func (p *Pages) list(w http.ResponseWriter, v pageRequest, has map[string]storage.Secret, missing []Missing, csrf string) {
	body := webpage.Text("The server " + v.server + " acts for " + v.who.Principal + " at:")
	for _, name := range v.providers {
		_, there := has[name]
		why := ""
		for _, m := range missing {
			if m.Provider == name && m.why != "" {
				why = "There is no access: " + m.why + "."
			}
		}
		body += providerForm(v, name, p.Vault.title(name), why, p.Vault.config.Providers[name], there, csrf)
	}
	p.page(w, http.StatusOK, "Connect", body)
}

// answer handles a submitted form of the page.
func (p *Pages) answer(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if err := r.ParseForm(); err != nil {
		return bad("The form cannot be read.")
	}
	f := r.PostForm
	csrf := p.cookies.Get(r, cookieCSRF)
	origin := r.Header.Get("Origin")
	switch {
	case csrf == "" || subtle.ConstantTimeCompare([]byte(csrf), []byte(f.Get("csrf"))) != 1:
		return bad("This page was shown to another browser, or cookies are switched off. Open the link again.")
	case origin != "" && origin != "null" && origin != p.Vault.config.PublicURL:
		return bad("This answer comes from another page. Open the link again.")
	}
	v, err := p.read(f)
	if err != nil {
		return err
	}
	if f.Has("ticket") && p.Redeem != nil {
		return p.redeem(w, r, v, strings.TrimSpace(f.Get("ticket")))
	}
	who, ok := p.visitor(r, v.server)
	if !ok {
		http.Redirect(w, r, v.path(), http.StatusSeeOther)
		return nil
	}
	v.who = who
	if err := v.isAsked(); err != nil {
		return err
	}
	name := f.Get("provider")
	if !slices.Contains(v.providers, name) {
		return bad("The server does not use this.")
	}
	return p.act(w, r, v, name, f)
}

func (p *Pages) act(w http.ResponseWriter, r *http.Request, v pageRequest, name string, f url.Values) error {
	provider := p.Vault.config.Providers[name]
	switch {
	case f.Get("action") == "remove":
		if _, err := p.Vault.Remove(r.Context(), v.who.Tenant, v.who.Principal, name); err != nil {
			return err
		}
		p.page(w, http.StatusOK, "Removed", webpage.Text("The server has no access to "+p.Vault.title(name)+" any more, once its process has ended."))
		return nil
	case provider.oauth():
		return p.leave(w, r, v, name)
	case provider.Exchange != nil && p.SignIn != nil:
		return p.SignIn.Visit(w, r, v.server, v.path())
	case provider.Exchange != nil:
		return bad("Nobody signs in here, so there is nothing to exchange. Ask who runs this endpoint.")
	}
	err := p.Vault.Put(r.Context(), v.who.Tenant, v.who.Principal, name, strings.TrimSpace(f.Get("secret")))
	if storage.CodeOf(err) == storage.Invalid {
		return bad("The value is empty or too long. Go back to the page before.")
	}
	if err != nil {
		return err
	}
	return p.done(w, r, v, name)
}

// done says that a third party is connected, and tells the client that had asked for it.
func (p *Pages) done(w http.ResponseWriter, r *http.Request, v pageRequest, name string) error {
	p.log.InfoContext(r.Context(), "a third party was connected", "server", v.server, "provider", name, "tenant", v.who.Tenant, "principal", v.who.Principal)
	if v.asked != nil && v.asked.Session != "" && p.Connected != nil {
		if err := p.Connected(r.Context(), *v.asked); err != nil {
			p.log.WarnContext(r.Context(), "a client was not told that its user has connected a third party", "session_id", v.asked.Session, "error", err)
		}
	}
	p.page(w, http.StatusOK, "Connected", webpage.Text(p.Vault.title(name)+" is connected. You can close this page and go back to your client."))
	return nil
}

// visitor returns who the user of a browser is, if that is known.
func (p *Pages) visitor(r *http.Request, server string) (storage.Identity, bool) {
	switch {
	case p.SignIn != nil:
		return p.SignIn.Visitor(r, server)
	case p.Everyone != nil:
		return *p.Everyone, true
	}
	var u user
	if !p.sealer.OpenJSON(p.cookies.Get(r, cookieUser), &u) || time.Now().Unix() > u.Until || u.Server != server {
		return storage.Identity{}, false
	}
	return storage.Identity{Tenant: u.Tenant, Principal: u.Principal}, true
}

// user is the content of the cookie of a user who has shown a ticket.
type user struct {
	Tenant    string `json:"t"`
	Principal string `json:"p"`
	Server    string `json:"v"`
	Until     int64  `json:"x"`
}

func (p *Pages) redeem(w http.ResponseWriter, r *http.Request, v pageRequest, ticket string) error {
	who, err := p.Redeem(r.Context(), ticket, v.server)
	if code := storage.CodeOf(err); code == storage.Unauthenticated || code == storage.Forbidden {
		return &refusal{http.StatusForbidden, "This ticket is not known, was used, or is too old. Get a new one, and go back to the page before.", nil}
	}
	if err != nil {
		return err
	}
	v.who = who
	if err := v.isAsked(); err != nil {
		return err
	}
	p.cookies.Set(w, cookieUser, p.sealer.SealJSON(user{who.Tenant, who.Principal, v.server, time.Now().Add(visitFor).Unix()}), visitFor)
	http.Redirect(w, r, v.path(), http.StatusSeeOther)
	return nil
}

// link is an OAuth flow in progress at a third party. Only the browser of its user has its cookie.
type link struct {
	State     string `json:"s"`
	Verifier  string `json:"v"`
	Provider  string `json:"n"`
	Server    string `json:"r"`
	Sealed    string `json:"e,omitempty"`
	Tenant    string `json:"t"`
	Principal string `json:"p"`
	Until     int64  `json:"x"`
}

// leave sends the browser to the third party.
func (p *Pages) leave(w http.ResponseWriter, r *http.Request, v pageRequest, name string) error {
	l := link{
		State: rand.Text(), Verifier: rand.Text() + rand.Text(), Provider: name, Server: v.server, Sealed: v.sealed,
		Tenant: v.who.Tenant, Principal: v.who.Principal, Until: time.Now().Add(linkWithin).Unix(),
	}
	provider := p.Vault.config.Providers[name]
	to, err := url.Parse(provider.Authorize)
	if err != nil {
		return err
	}
	q := to.Query()
	for key, value := range provider.Params {
		q.Set(key, value)
	}
	challenge := sha256.Sum256([]byte(l.Verifier))
	for key, value := range map[string]string{
		"response_type": "code", "client_id": provider.ClientID, "redirect_uri": p.Redirect(), "state": l.State,
		"code_challenge": base64.RawURLEncoding.EncodeToString(challenge[:]), "code_challenge_method": "S256",
		"scope": strings.Join(provider.Scopes, " "), "resource": provider.Resource,
	} {
		if value != "" {
			q.Set(key, value)
		}
	}
	to.RawQuery = q.Encode()
	p.cookies.Set(w, linkCookie(l.State), p.sealer.SealJSON(l), linkWithin)
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
	return nil
}

// back takes the user back from the third party.
func (p *Pages) back(w http.ResponseWriter, r *http.Request) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return bad("The answer of the third party cannot be read.")
	}
	state := q.Get("state")
	var l link
	if state == "" || !p.sealer.OpenJSON(p.cookies.Get(r, linkCookie(state)), &l) || subtle.ConstantTimeCompare([]byte(l.State), []byte(state)) != 1 || time.Now().Unix() > l.Until {
		return bad("This was not begun in this browser, or is over. Open the link again.")
	}
	p.cookies.Set(w, linkCookie(state), "", 0)
	v, err := p.read(url.Values{"server": {l.Server}, "e": {l.Sealed}})
	if err != nil {
		return err
	}
	v.who = storage.Identity{Tenant: l.Tenant, Principal: l.Principal}
	provider, title := p.Vault.config.Providers[l.Provider], p.Vault.title(l.Provider)
	switch iss := q.Get("iss"); {
	case v.isAsked() != nil || !slices.Contains(v.providers, l.Provider) || !provider.oauth():
		return bad("The servers file has changed meanwhile. Open the link again.")
	case iss != "" && provider.Issuer != "" && iss != provider.Issuer:
		return bad("The answer is of another third party than " + title + ".")
	case webpage.Refusal(q) != "":
		return bad(title + " has not given access: " + webpage.Refusal(q) + ".")
	}
	t, err := p.Vault.redeem(r.Context(), provider, q.Get("code"), l.Verifier, p.Redirect())
	if storage.CodeOf(err) == storage.Unauthenticated {
		return &refusal{http.StatusBadGateway, title + " does not take its own code, or not our client_id and client_secret. Open the link again, or ask who runs this endpoint.", err}
	}
	if err != nil {
		return err
	}
	if err := p.Vault.put(r.Context(), place{l.Tenant, l.Principal, l.Provider}, t); err != nil {
		return err
	}
	return p.done(w, r, v, l.Provider)
}

const (
	cookieCSRF = "dm_connect_csrf"
	cookieUser = "dm_connect_user"
	cookieLink = "dm_connect_"
)

func linkCookie(state string) string {
	sum := sha256.Sum256([]byte(state))
	return cookieLink + base64.RawURLEncoding.EncodeToString(sum[:6])
}

func (p *Pages) csrf(w http.ResponseWriter, r *http.Request) string {
	value := p.cookies.Get(r, cookieCSRF)
	if len(value) != len(rand.Text()) {
		value = rand.Text()
	}
	p.cookies.Set(w, cookieCSRF, value, linkWithin)
	return value
}
