// Package console serves the console: a page in the browser that shows servers, sessions,
// calls, people, costs and keys, and acts on them. docs/console.md describes it.
//
// The page consists of static files in this program, and loads nothing from other hosts. It
// uses the API of operators, package api, and calls tools as an MCP client. The visitor's
// browser sends a cookie, which holds the visitor's API key, encrypted. After the sign-in
// the page never sees the key. Requests that change something need the Origin of the page and a
// header that pages of other origins cannot send.
//
// A console keeps nothing in memory: any process with the same secret and store may answer any
// request.
package console

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/klauspost/compress/gzhttp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// Path is the path of the page. All paths of the console begin with it.
const Path = "/console/"

// EntryPath is the path at which the holder of an API key gets a link that signs in to the
// console once. The answer is an [api.Entry], whose URL is a path of the endpoint.
const EntryPath = Path + "entry"

// Header is a header that each request of the page to the API has.
const Header = "X-Dormouse-Console"

// home is a second path of the page, for an API Gateway that adds a prefix: it may cut the slash at the
// end of [Path].
const home = Path + "home"

// Options are what a console works with. All fields but MCP are needed.
type Options struct {
	Secret  []byte          // 32 bytes or more; the console encrypts cookies with it
	Tickets *apikey.Tickets // keeps the links that sign in
	// Hosts reports whether a request's Host is served.
	Hosts func(host string) bool
	// API answers for paths below [api.Prefix]. The caller is the user of the machine if owner is true,
	// and else the holder of the API key in the header Authorization.
	API func(owner bool) http.Handler
	// SignIn returns the name of the provider at which people sign in, and the URL of the
	// endpoint whose authorization server sends them there. If SignIn is nil or endpoint
	// is "", people sign in with an API key.
	SignIn func() (name, endpoint string)
	// MCP answers MCP clients, at /NAME/mcp. If MCP is nil, the page calls the endpoint
	// directly, with keys that expire soon.
	MCP http.Handler
}

// Console is an http.Handler for all paths that [Serves] names.
type Console struct {
	Options
	door    *door
	files   *files
	handler http.Handler
}

// New returns a console. It panics if o.Secret is too short.
func New(o Options) *Console {
	if o.SignIn == nil {
		o.SignIn = func() (name, endpoint string) { return "", "" }
	}
	c := &Console{Options: o, door: newDoor(o.Secret, o.Tickets), files: newFiles(o.SignIn)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path+"{$}", c.files.index)
	mux.HandleFunc("GET "+home, c.files.index)
	mux.HandleFunc("GET "+Path+"files/{version}/{name...}", c.files.file)
	mux.HandleFunc("GET "+Path+"enter", c.enter)
	mux.HandleFunc("POST "+EntryPath, c.entry)
	mux.HandleFunc("POST "+Path+"session", c.fromThePage(c.signIn))
	mux.HandleFunc("DELETE "+Path+"session", c.fromThePage(c.signOut))
	mux.HandleFunc(Path+"api/", c.fromThePage(c.api))
	mux.HandleFunc("POST "+Path+"mcp/{server}", c.fromThePage(c.mcp))
	c.handler = gzhttp.GzipHandler(mux)
	return c
}

// Serves reports whether a path belongs to the console.
func Serves(path string) bool {
	return path == strings.TrimSuffix(Path, "/") || strings.HasPrefix(path, Path)
}

// enterPath is the path of a link that signs in, up to the ticket.
const enterPath = Path + "enter?ticket="

// Entry returns a link that signs in the user of the machine once. The argument base is the URL
// of the endpoint. Errors: Unavailable.
func (c *Console) Entry(ctx context.Context, base string) (api.Entry, error) {
	return c.link(ctx, strings.TrimSuffix(base, "/"), visitor{})
}

func (c *Console) link(ctx context.Context, base string, v visitor) (api.Entry, error) {
	ticket, life, err := c.door.ticket(ctx, v)
	return api.Entry{URL: base + enterPath + ticket, Seconds: int64(life.Seconds())}, err
}

// prefixed is the key of the prefix in the context of a request.
type prefixed struct{}

// Under returns the context of requests whose path lacks a prefix that the visitor's browser
// sees, such as "/v1", the stage of an API.
func Under(ctx context.Context, prefix string) context.Context {
	return context.WithValue(ctx, prefixed{}, prefix)
}

func prefix(r *http.Request) string {
	text, _ := r.Context().Value(prefixed{}).(string)
	return text
}

// pageOf returns the path of the page, as the visitor's browser sees it.
func pageOf(r *http.Request) string {
	if _, behind := r.Context().Value(prefixed{}).(string); behind {
		return prefix(r) + home
	}
	return Path
}

// ServeHTTP implements http.Handler.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	switch {
	case !c.Hosts(r.Host):
		refuse(w, http.StatusForbidden, storage.Forbidden, "the console is not served under this name; open it with the address that dormouse run prints")
	case r.URL.Path+"/" == Path:
		http.Redirect(w, r, pageOf(r), http.StatusPermanentRedirect)
	default:
		c.handler.ServeHTTP(w, r)
	}
}

// fromThePage lets only requests of our own page through. Pages of other origins cannot send the
// header of the page, because the console answers no CORS preflight.
func (c *Console) fromThePage(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Values("Origin")
		changes := r.Method != http.MethodGet && r.Method != http.MethodHead
		switch {
		case r.Header.Get(Header) == "", site != "" && site != "same-origin",
			len(origin) > 1, len(origin) == 0 && changes, len(origin) == 1 && !sameHost(origin[0], r.Host):
			refuse(w, http.StatusForbidden, storage.Forbidden, "only the console's own page may ask this")
		default:
			r = r.Clone(r.Context())
			r.Header.Del("Origin")
			serve(w, r)
		}
	}
}

func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
}

// enter serves the links that sign in.
func (c *Console) enter(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	v, err := c.door.redeem(r.Context(), r.URL.Query().Get("ticket"))
	switch code := storage.CodeOf(err); code {
	case "":
		c.door.let(w, r, v)
		http.Redirect(w, r, pageOf(r), http.StatusSeeOther)
	case storage.Unauthenticated, storage.Forbidden:
		http.Redirect(w, r, pageOf(r)+"#/sign-in/used", http.StatusSeeOther)
	default:
		refuse(w, http.StatusServiceUnavailable, storage.Unavailable, "the store did not answer; make a new link")
	}
}

// maxSignIn bounds the body of a sign-in, in bytes.
const maxSignIn = 4 << 10

// signIn sets the visitor's cookie. The visitor sends an API key of role viewer, auditor or operator, or
// a token from the sign-in at the provider.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	var shown struct {
		Key string `json:"key"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxSignIn)).Decode(&shown); err != nil || strings.TrimSpace(shown.Key) == "" {
		refuse(w, http.StatusBadRequest, storage.Invalid, "paste an API key of role viewer, auditor or operator")
		return
	}
	v := visitor{Key: strings.TrimSpace(shown.Key)}
	answer := c.introduce(w, r, v)
	if answer.status == http.StatusOK {
		c.door.let(w, r, v)
	}
	answer.pass()
}

// introduce asks the API who a visitor is.
func (c *Console) introduce(w http.ResponseWriter, r *http.Request, v visitor) *held {
	ask := r.Clone(r.Context())
	ask.Method, ask.URL.Path, ask.URL.RawQuery, ask.Body, ask.ContentLength = http.MethodGet, api.Prefix, "", http.NoBody, 0
	answer := &held{ResponseWriter: w, status: http.StatusOK, head: http.Header{}}
	c.API(false).ServeHTTP(answer, v.shows(ask))
	return answer
}

// entry gives the holder of an API key a link that signs in with the rights of this key. Web pages get
// no link: with links, the console's page could keep its rights when its cookie has expired.
func (c *Console) entry(w http.ResponseWriter, r *http.Request) {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "":
		refuse(w, http.StatusForbidden, storage.Forbidden, "web pages get no link to the console")
		return
	case !ok || strings.TrimSpace(key) == "":
		refuse(w, http.StatusUnauthorized, storage.Unauthenticated, "a link to the console needs an API key of role viewer, auditor or operator")
		return
	}
	v := visitor{Key: strings.TrimSpace(key)}
	answer := c.introduce(w, r, v)
	if answer.status != http.StatusOK {
		answer.pass()
		return
	}
	e, err := c.link(r.Context(), "", v)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, storage.Unavailable, "the store did not answer; try again")
		return
	}
	send(w, http.StatusOK, e)
}

// send answers in JSON.
func send(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the visitor may be gone
}

// held is a response that is sent only when pass is called.
type held struct {
	http.ResponseWriter
	status int
	head   http.Header
	body   bytes.Buffer
}

func (h *held) Header() http.Header { return h.head }

func (h *held) WriteHeader(status int) { h.status = status }

func (h *held) Write(p []byte) (int, error) { return h.body.Write(p) }

func (h *held) pass() {
	maps.Copy(h.ResponseWriter.Header(), h.head)
	h.ResponseWriter.WriteHeader(h.status)
	_, _ = h.ResponseWriter.Write(h.body.Bytes()) // the caller may be gone
}

func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	c.door.forget(w, r)
	w.WriteHeader(http.StatusNoContent)
}

// api answers the page's requests to the API of operators.
func (c *Console) api(w http.ResponseWriter, r *http.Request) {
	v, ok := c.door.visitor(r)
	if !ok {
		refuse(w, http.StatusUnauthorized, storage.Unauthenticated, "you are not signed in")
		return
	}
	r.URL.Path = strings.TrimPrefix(r.URL.Path, strings.TrimSuffix(Path, "/"))
	c.API(v.owner()).ServeHTTP(w, v.shows(r))
}

// mcp passes a request of the page on to a hosted server, with the visitor's API key. The user of the
// machine and people who have signed in at the provider have none. If servers need a key, the page then
// makes one that expires soon, and sends it in the header Authorization.
func (c *Console) mcp(w http.ResponseWriter, r *http.Request) {
	v, ok := c.door.visitor(r)
	if !ok {
		refuse(w, http.StatusUnauthorized, storage.Unauthenticated, "you are not signed in")
		return
	}
	if c.MCP == nil {
		refuse(w, http.StatusNotImplemented, "not_here", "servers are not called through the console here; call the endpoint with a key")
		return
	}
	r.URL.Path = "/" + r.PathValue("server") + "/mcp"
	if !apikey.IsKey(v.Key) {
		r.Header.Del("Cookie")
		c.MCP.ServeHTTP(w, r)
		return
	}
	c.MCP.ServeHTTP(w, v.shows(r))
}

// refuse answers an error in the form of the API.
func refuse(w http.ResponseWriter, status int, code storage.Code, message string) {
	var f api.Failure
	f.Error.Code, f.Error.Message = string(code), message
	send(w, status, f)
}
