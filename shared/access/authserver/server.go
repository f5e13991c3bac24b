// Package authserver is an authorization server (OAuth 2.1; MCP, basic/authorization) that
// has users sign in elsewhere: at an OpenID Connect provider or at GitHub. It registers
// clients, asks users for consent, and issues tokens, each for one server or one group of
// servers. Package resourceserver verifies these tokens.
//
// # What is stored
//
// A grant is stored when a client redeems its code: one conditional write, under an ID
// that is in the code. Registrations, requests and codes are sealed and carried by the
// client or the browser, so that strangers can store nothing. Consents are in a cookie. The
// document of a client is stored when one of its users has signed in.
//
// # Why the server is ours
//
// We looked for a library first. zitadel/oidc v3.51 (28 modules, 10.8 MB) and ory/fosite v0.49 (465
// modules, 16.6 MB) build and are well kept. Neither registers clients (RFC 7591), reads client ID
// metadata documents, knows resource indicators in the code flow (RFC 8707), or sends iss in its
// answers (RFC 9207). Both store each request and each code before a user has signed in. They leave
// rotation and reuse of refresh tokens to the store that their caller writes. zitadel/oidc needs
// signing keys and issues ID tokens; ory/fosite refuses a client on localhost whose port is not
// registered. We did not read go-oauth2 v4.5 (50 modules). luikyv/go-oidc, osin and hydra cannot be
// had as modules. For the other side, signing in at a provider, coreos/go-oidc and
// golang.org/x/oauth2 do all that is needed.
package authserver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

// Store stores the grants, and a few values of the authorization server's own.
type Store interface {
	storage.Grants
	storage.Values
}

// Config configures a [Server]. Settings, Servers, Store, Keys and Secret are required.
type Config struct {
	resourceserver.Settings
	Servers []string // names of all servers
	// Served reports whether clients may ask for a server. nil: they may ask for each.
	Served func(server string) bool
	Store  Store
	Keys   *apikey.Keys // verifies API keys, which programs exchange for tokens
	// Secret seals the data that clients and browsers carry. The server also opens data
	// that was sealed with one of Others.
	Secret []byte
	Others [][]byte
	// Login is where users sign in. nil: at Settings.Issuer. If Settings.Issuer is the public URL
	// itself, users sign in with any name, for development.
	Login Login
	// SignedIn gets the tokens that the identity provider has given to a user who signed in. The
	// argument server is a server, or the address of a group. nil: the tokens are dropped.
	SignedIn func(ctx context.Context, who storage.Identity, server string, t Token) error
	// Client makes requests to the issuers. nil: HTTP clients that limit time and size.
	Client *http.Client
	// Documents gets client ID metadata documents. nil: a client that connects only to
	// public addresses.
	Documents *http.Client
	Log       *slog.Logger // gets a line for each request; nil for none
}

// Server is an http.Handler for the paths of [Server.Serves]. It is safe for concurrent use.
type Server struct {
	seals
	targets
	clients
	grants
	browsers
	store     Store
	keys      *apikey.Keys
	login     Login
	signedIn  func(ctx context.Context, who storage.Identity, server string, t Token) error
	companies map[string]*resourceserver.Assertions // issuers of assertions, by their URLs
	routes    map[string]route
	log       *slog.Logger
}

// targets are the servers and groups that clients may ask for, and the rules for them. The name
// of a group is its address; settings.Groups has the groups.
type targets struct {
	settings resourceserver.Settings
	servers  []string
}

type seals map[purpose]*storage.Sealer

// purpose says what sealed data is for. Data that is sealed for one purpose cannot be
// opened for another.
type purpose string

const (
	forClient  purpose = "oauth client"
	forConsent purpose = "oauth consent"
	forRequest purpose = "oauth request"
	forFlow    purpose = "oauth flow"
	forCode    purpose = "oauth code"
	forName    purpose = "oauth development name"
	forVisit   purpose = "oauth visitor"
)

type route struct {
	methods string // the value of the header Allow
	serve   func(http.ResponseWriter, *http.Request) error
	public  bool // pages of any origin may send requests and read the answers
}

// New makes a Server, and sends no request. The error says which setting is wrong.
func New(c Config) (*Server, error) {
	s, err := c.Settings.Complete(c.Servers)
	if err == nil {
		err = s.CheckBroker()
	}
	if err != nil {
		return nil, err
	}
	sealers := seals{}
	b := &Server{
		seals: sealers, targets: targets{settings: s}, store: c.Store, keys: c.Keys, login: c.Login, signedIn: c.SignedIn, log: cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
		clients: clients{
			seals: sealers, secrets: append([][]byte{c.Secret}, c.Others...),
			documents: newDocuments(c.Store, cmp.Or(c.Documents, newPublicClient()), s.ClientHosts),
		},
		grants:   grants{seals: sealers, rows: c.Store},
		browsers: browsers{seals: sealers, cookies: webpage.Cookies{Plain: strings.HasPrefix(s.PublicURL, "http://")}},
	}
	for _, name := range c.Servers {
		if c.Served == nil || c.Served(name) {
			b.servers = append(b.servers, name)
		}
	}
	b.serveGroups()
	for _, p := range []purpose{forClient, forConsent, forRequest, forFlow, forCode, forName, forVisit} {
		if b.seals[p], err = storage.NewSealer(string(p), c.Secret, c.Others...); err != nil {
			return nil, err
		}
	}
	if b.seals[forAccess], err = resourceserver.NewTokenSealer(c.Secret, c.Others...); err != nil {
		return nil, err
	}
	if b.list, err = listed(s, b.log); err != nil {
		return nil, err
	}
	if b.companies, err = newCompanies(s, c.Client, c.Log); err != nil {
		return nil, err
	}
	b.routes = b.allRoutes()
	if err := b.openLogin(c.Client); err != nil {
		return nil, err
	}
	b.origin = b.login.Origin()
	return b, nil
}

// forAccess is the purpose of access tokens. Package resourceserver makes their sealer.
const forAccess purpose = "access token"

func (b *Server) allRoutes() map[string]route {
	metadata := route{"GET, HEAD, OPTIONS", b.metadata, true}
	return map[string]route{
		"/.well-known/oauth-authorization-server": metadata,
		"/authorize": {"GET, POST", b.authorize, false},
		"/callback":  {"GET", b.callback, false},
		"/token":     {"POST, OPTIONS", b.token, true},
		"/register":  {"POST, OPTIONS", b.register, true},
		"/revoke":    {"POST, OPTIONS", b.revoke, true},
	}
}

// Paths are all paths that a [Server] may serve.
func Paths() []string {
	return []string{"/.well-known/oauth-authorization-server", "/authorize", "/callback", "/login", "/register", "/revoke", "/token"}
}

// Serves reports whether a path is one of the server's.
func (b *Server) Serves(path string) bool {
	_, ok := b.routes[path]
	return ok
}

// ServeHTTP serves one request and logs it, without its query and its body.
func (b *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	err := b.serve(w, r)
	refused, _ := errors.AsType[*refusal](err)
	if err != nil {
		refused = cmp.Or(refused, internal(err))
		b.refuse(w, r, refused)
	}
	attrs := []any{"method", r.Method, "path", r.URL.Path, "duration_ms", time.Since(begun).Milliseconds()}
	level := slog.LevelInfo
	if refused != nil {
		attrs = append(attrs, "status", refused.status, "error", refused.code)
		if refused.status >= http.StatusInternalServerError {
			level, attrs = slog.LevelError, append(attrs, "cause", errors.Unwrap(refused))
		}
	}
	b.log.Log(r.Context(), level, "sign-in", attrs...)
}

func (b *Server) serve(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	to, ok := b.routes[r.URL.Path]
	switch {
	case !ok:
		return &refusal{status: http.StatusNotFound, code: "not_found", text: "there is nothing at this path"}
	case b.cookies.Plain && !b.known(r.Host):
		// A page whose domain name leads to this machine could otherwise read our pages
		// (DNS rebinding).
		return &refusal{status: http.StatusForbidden, code: "access_denied", text: "this endpoint is not served under this name; use " + b.settings.PublicURL}
	}
	if to.public {
		h.Set("Access-Control-Allow-Origin", "*")
	}
	if r.Method == http.MethodOptions && to.public {
		h.Set("Access-Control-Allow-Methods", to.methods)
		h.Set("Access-Control-Allow-Headers", "Accept, Authorization, Content-Type, MCP-Protocol-Version")
		h.Set("Access-Control-Max-Age", "86400")
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if !slices.Contains(strings.Split(to.methods, ", "), r.Method) {
		h.Set("Allow", to.methods)
		return &refusal{status: http.StatusMethodNotAllowed, code: "invalid_request", text: "this method is not served here; use " + to.methods}
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	return to.serve(w, r)
}

// known reports whether a Host is the host of the public URL, which is on loopback.
func (b *Server) known(host string) bool {
	u, err := url.Parse(b.settings.PublicURL)
	return err == nil && strings.EqualFold(host, u.Host)
}

// Limits of requests, in bytes.
const (
	maxBody  = 64 << 10
	maxField = 8 << 10 // bytes of a field of a form; an assertion is the longest
	maxID    = 512     // bytes of a client's id, and of a redirect URI
	maxState = 1024
)

// refusal is an error of OAuth (RFC 6749 §5.2). The field text, in ASCII, is for the client or the
// user; the field cause is only logged.
type refusal struct {
	status int
	code   string
	text   string
	cause  error
}

func (e *refusal) Error() string { return e.code + ": " + e.text }
func (e *refusal) Unwrap() error { return e.cause }

func bad(code, text string) *refusal { return &refusal{http.StatusBadRequest, code, text, nil} }

// internal turns an error of the store or of a provider into a refusal: Forbidden into
// access_denied, any other error into one that says to try again.
func internal(err error) *refusal {
	if storage.CodeOf(err) == storage.Forbidden {
		return &refusal{http.StatusForbidden, "access_denied", err.Error(), err}
	}
	return &refusal{http.StatusServiceUnavailable, "temporarily_unavailable", "a service that this sign-in needs does not answer; try again in a few minutes", err}
}

// refuse answers with an error: JSON for clients, a page for people.
func (b *Server) refuse(w http.ResponseWriter, r *http.Request, e *refusal) {
	if e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	to := b.routes[r.URL.Path]
	if to.serve != nil && !to.public {
		b.page(w, e.status, "", pageData{Title: "Sign-in failed", Text: e.text})
		return
	}
	if e.code == "invalid_client" && strings.HasPrefix(strings.ToLower(r.Header.Get("Authorization")), "basic ") {
		e.status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", `Basic realm="token"`)
	}
	writeJSON(w, e.status, map[string]string{"error": e.code, "error_description": e.text})
}

func writeJSON(w http.ResponseWriter, status int, document any) {
	text, err := json.Marshal(document)
	if err != nil {
		panic("authserver: " + err.Error()) // strings and numbers always marshal
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

func sum(text string) []byte {
	h := sha256.Sum256([]byte(text))
	return h[:]
}

// form reads a form body. A field that comes twice is an error (RFC 6749 §3.2), and an
// empty one counts as absent.
func form(r *http.Request) (url.Values, error) {
	if t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(t), "application/x-www-form-urlencoded") {
		return nil, bad("invalid_request", "the body is not a form; send application/x-www-form-urlencoded")
	}
	if err := r.ParseForm(); err != nil {
		return nil, bad("invalid_request", "the form in the body is malformed; encode it as application/x-www-form-urlencoded")
	}
	return r.PostForm, once(r.PostForm)
}

// once refuses fields that come twice or are too long, and removes empty ones.
func once(v url.Values) error {
	for name, values := range v {
		if len(values) > 1 {
			return bad("invalid_request", "a field of the form appears twice; send each field once")
		}
		if len(values[0]) > maxField {
			return bad("invalid_request", "a field of the form is too long; send a shorter value")
		}
		if values[0] == "" {
			delete(v, name)
		}
	}
	return nil
}
