package authserver

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
)

// request is a checked authorization request. A request is sealed into the consent page, and into
// the cookie of the sign-in (see flow).
type request struct {
	Client    string   `json:"i"`
	Redirect  string   `json:"u"`
	State     string   `json:"s,omitempty"`
	Challenge string   `json:"h"`
	Server    string   `json:"v,omitempty"` // "" until the user has chosen one
	Scopes    []string `json:"c,omitempty"` // the scopes that the client asks for
	Name      string   `json:"n,omitempty"`
	Until     int64    `json:"x"` // Unix seconds
}

const (
	consentWithin = 30 * time.Minute // the time from the consent page to the user's answer
	flowWithin    = 15 * time.Minute // the time from the user's answer to the end of the sign-in
	codeWithin    = time.Minute
)

// redirectError is a refusal that reaches the client by a redirect of the browser.
type redirectError struct {
	to         request
	code, text string
}

func (e *redirectError) Error() string { return e.code }

// authorize shows the consent page for a request (GET), or handles the form of that page (POST).
func (b *Server) authorize(w http.ResponseWriter, r *http.Request) error {
	err := error(nil)
	if r.Method == http.MethodPost {
		err = b.answer(w, r)
	} else {
		err = b.ask(w, r)
	}
	if e, ok := err.(*redirectError); ok { //nolint:errorlint // a redirectError is never wrapped
		b.back(w, r, e.to, url.Values{"error": {e.code}, "error_description": {e.text}})
		return nil
	}
	return err
}

// back sends the browser to the client.
func (b *Server) back(w http.ResponseWriter, r *http.Request, to request, q url.Values) {
	q.Set("iss", b.settings.PublicURL)
	if to.State != "" {
		q.Set("state", to.State)
	}
	http.Redirect(w, r, withQuery(to.Redirect, q), http.StatusSeeOther)
}

// ask checks a request and shows the consent page. If the user has agreed before, it starts the
// sign-in instead.
func (b *Server) ask(w http.ResponseWriter, r *http.Request) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return bad("invalid_request", "the address of this page cannot be read; go back to your client and start again")
	}
	resources := q["resource"]
	delete(q, "resource")
	if err := once(q); err != nil {
		return err
	}
	who, err := b.client(r.Context(), q.Get("client_id"))
	if err != nil {
		return err
	}
	req := request{Client: who.id, Redirect: q.Get("redirect_uri"), State: q.Get("state"), Name: who.name, Until: time.Now().Add(consentWithin).Unix()}
	// The server never sends a browser to an address that the client has not registered.
	if checkRedirect(req.Redirect) != nil || !who.has(req.Redirect) {
		return bad("invalid_request", "the client asks to send you to an address that it has not registered; its developer must register that address")
	}
	if len(req.State) > maxState {
		return bad("invalid_request", "the client sends a state that is too long; its developer must send a shorter one")
	}
	if err := b.check(q, resources, &req); err != nil {
		return err
	}
	if req.Client == resourceserver.ConsoleClient { // the console is part of Dormouse, so the user need not consent
		return b.begins(w, r, req, "")
	}
	if req.Server != "" && b.agreed(r, who, req) && q.Get("prompt") != "consent" {
		return b.begins(w, r, req, "")
	}
	if q.Get("prompt") == "none" {
		return &redirectError{req, "interaction_required", "the user has to agree first"}
	}
	return b.askUser(w, r, who, req)
}

// check checks the part of a request whose mistakes are reported to the client.
func (b *Server) check(q url.Values, resources []string, req *request) error {
	refuse := func(code, text string) error { return &redirectError{*req, code, text} }
	switch {
	case q.Get("request") != "":
		return refuse("request_not_supported", "requests as JWTs are not taken")
	case q.Get("request_uri") != "":
		return refuse("request_uri_not_supported", "requests as JWTs are not taken")
	case q.Get("response_type") != "code":
		return refuse("unsupported_response_type", "only codes are given out; send response_type=code")
	case q.Get("response_mode") != "" && q.Get("response_mode") != "query":
		return refuse("invalid_request", "the answer is given in the query only")
	case q.Get("code_challenge_method") != "S256":
		return refuse("invalid_request", "send a code_challenge with the method S256")
	case !isChallenge(q.Get("code_challenge")):
		return refuse("invalid_request", "the code_challenge is no SHA-256 hash in base64url")
	case len(resources) > 1:
		return refuse("invalid_target", "a token is for one server; send one resource")
	}
	req.Challenge = q.Get("code_challenge")
	if req.Scopes = strings.Fields(q.Get("scope")); len(req.Scopes) > 100 {
		return refuse("invalid_scope", "the request has more than 100 scopes")
	}
	if req.Client == resourceserver.ConsoleClient {
		req.Server, req.Scopes = resourceserver.Console, nil
		if !slices.Equal(resources, []string{b.settings.PublicURL + resourceserver.Console}) {
			return refuse("invalid_target", "the console gets tokens for itself only")
		}
		return nil
	}
	server, err := b.resource(url.Values{"resource": resources})
	if err != nil {
		return refuse("invalid_target", "the resource is not a server of this endpoint; send the URL of one server, or the address of all")
	}
	if req.Server = server; server == "" && len(b.servers) == 1 {
		req.Server = b.servers[0]
	}
	b.limit(req)
	return nil
}

func isChallenge(text string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return err == nil && len(raw) == 32
}

// asked is the sealed data of a consent page: the request, and the value of a cookie of
// the browser that got the page.
type asked struct {
	Request request `json:"r"`
	CSRF    string  `json:"f"`
}

// askUser shows the consent page.
func (b *Server) askUser(w http.ResponseWriter, r *http.Request, who client, req request) error {
	csrf := b.cookies.Get(r, cookieCSRF)
	if len(csrf) != handleChars {
		csrf = rand.Text()
	}
	b.cookies.Set(w, cookieCSRF, csrf, consentWithin)
	data := pageData{
		Title: "Allow access?", Client: who.name, Site: who.site, Host: hostOf(req.Redirect), Server: req.Server, Adds: b.additions(req),
		Request: b.seals[forRequest].SealJSON(asked{req, csrf}), Program: reachesProgram(req.Redirect),
	}
	if name, _ := b.settings.SignIn(); b.login.Origin() != "" {
		data.Provider = name
	}
	switch members, group := b.settings.Groups[req.Server]; {
	case group:
		data.Server, data.Members = "", members
	case req.Server == "":
		data.Servers, data.Groups = b.servers, slices.Sorted(maps.Keys(b.settings.Groups))
	}
	b.page(w, http.StatusOK, req.Redirect, data)
	return nil
}

// answer handles the form of the consent page, in which the user has allowed or refused access.
func (b *Server) answer(w http.ResponseWriter, r *http.Request) error {
	f, err := form(r)
	if err != nil {
		return err
	}
	var a asked
	csrf := b.cookies.Get(r, cookieCSRF)
	switch {
	case !b.seals[forRequest].OpenJSON(f.Get("request"), &a):
		return bad("invalid_request", "this page cannot be read any more; go back to your client and start again")
	case csrf == "" || subtle.ConstantTimeCompare([]byte(csrf), []byte(a.CSRF)) != 1:
		return bad("invalid_request", "this page was shown to another browser, or cookies are switched off; go back to your client and start again")
	case time.Now().Unix() > a.Request.Until:
		return bad("invalid_request", "this page was shown too long ago; go back to your client and start again")
	case r.Header.Get("Origin") != "" && r.Header.Get("Origin") != "null" && r.Header.Get("Origin") != b.settings.PublicURL:
		return bad("invalid_request", "this answer comes from another page; go back to your client and start again")
	}
	req := a.Request
	if f.Get("answer") != "allow" {
		return &redirectError{req, "access_denied", "the user has refused"}
	}
	if req.Server == "" {
		if req.Server = f.Get("server"); !b.has(req.Server) {
			return bad("invalid_request", "no server was chosen; go back to the page before and choose one")
		}
		b.limit(&req)
	}
	// The client may have changed while the page was open.
	who, err := b.client(r.Context(), req.Client)
	if err != nil {
		return err
	}
	if !who.has(req.Redirect) {
		return bad("invalid_request", "the client has changed meanwhile; go back to it and start again")
	}
	b.remember(w, r, who, req)
	return b.begins(w, r, req, "")
}
