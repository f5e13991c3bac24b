package authserver

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
	"golang.org/x/oauth2"
)

// Login is where users sign in.
type Login interface {
	// Origin is the scheme and host of the pages where users sign in; "" if the [Server] has
	// these pages itself.
	Origin() string
	// URL returns where to send a browser so that its user signs in and comes back to
	// the address of the redirect, with the state.
	URL(ctx context.Context, a Attempt, redirect string) (string, error)
	// User returns the user who came back. The argument query is the query of the request to the
	// redirect. Errors: Unauthenticated; Unavailable.
	User(ctx context.Context, a Attempt, redirect string, query url.Values) (User, error)
}

// User is a user who has signed in.
type User struct {
	Claims map[string]any
	Token  Token
}

// Token is what a provider has given to a user who signed in there. Access is "" if the
// provider gave no token.
type Token struct {
	Access  string
	Refresh string    // "" for none
	Until   time.Time // when Access ends; zero if that is not known
}

// Attempt has the random values of one sign-in.
type Attempt struct {
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"` // the code verifier of PKCE
}

// flow is a sign-in in progress. Only the browser of its user has its cookie.
type flow struct {
	Attempt
	Request request `json:"r"`
	// Back is where the browser goes after the sign-in, if no client asked for it: a path
	// of this endpoint.
	Back  string `json:"b,omitempty"`
	Until int64  `json:"x"`
}

func flowCookie(state string) string { return cookieFlow + idText(sum(state))[:8] }

// maxFlows bounds how many sign-ins a browser keeps cookies for.
const maxFlows = 3

// begins sends the browser to the sign-in, and sets the cookie of the flow.
func (b *Server) begins(w http.ResponseWriter, r *http.Request, req request, back string) error {
	f := flow{Attempt{rand.Text(), rand.Text(), oauth2.GenerateVerifier()}, req, back, time.Now().Add(flowWithin).Unix()}
	to, err := b.login.URL(r.Context(), f.Attempt, b.redirect())
	if err != nil {
		return err
	}
	left := 0
	for _, c := range r.Cookies() {
		if name := strings.TrimPrefix(c.Name, "__Host-"); strings.HasPrefix(name, cookieFlow) {
			if left++; left > maxFlows {
				b.cookies.Set(w, name, "", 0)
			}
		}
	}
	b.cookies.Set(w, flowCookie(f.State), b.seals[forFlow].SealJSON(f), flowWithin)
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

// redirect is where providers send browsers after the sign-in.
func (b *Server) redirect() string { return b.settings.PublicURL + "/callback" }

type code struct {
	Request   request `json:"r"`
	Handle    string  `json:"g"` // handle of the grant that the client gets for the code
	Tenant    string  `json:"t"`
	Principal string  `json:"p"`
	Issuer    string  `json:"i"`
	Props     []byte  `json:"d,omitempty"`
	Claims    []byte  `json:"k,omitempty"`
	Until     int64   `json:"x"`
}

// callback takes the user back from the sign-in, and sends them to the client with a
// code.
func (b *Server) callback(w http.ResponseWriter, r *http.Request) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err == nil {
		err = once(q)
	}
	if err != nil {
		return bad("invalid_request", "the answer of the identity provider is malformed; go back to your client and start again")
	}
	state := q.Get("state")
	var f flow
	if state == "" || !b.seals[forFlow].OpenJSON(b.cookies.Get(r, flowCookie(state)), &f) || subtle.ConstantTimeCompare([]byte(f.State), []byte(state)) != 1 || time.Now().Unix() > f.Until {
		return bad("invalid_request", "this sign-in has expired, or was started in another browser; go back to your client and start again")
	}
	b.cookies.Set(w, flowCookie(state), "", 0)
	user, err := b.login.User(r.Context(), f.Attempt, b.redirect(), q)
	var c code
	if err == nil {
		c, err = b.identify(f.Request, user.Claims)
	}
	if why := storage.CodeOf(err); why == storage.Unauthenticated || why == storage.Forbidden {
		who := storage.RefusedOf(err)
		b.log.WarnContext(r.Context(), "a sign-in was refused", "server", f.Request.Server, "tenant", who.Tenant, "principal", who.Principal, "error", err)
		if f.Back != "" {
			return &refusal{http.StatusForbidden, "access_denied", err.Error(), nil}
		}
		b.back(w, r, f.Request, url.Values{"error": {"access_denied"}, "error_description": {webpage.ASCII(err.Error())}})
		return nil
	}
	if err != nil {
		return err
	}
	if b.signedIn != nil && user.Token.Access != "" {
		who := storage.Identity{Tenant: c.Tenant, Principal: c.Principal}
		if err := b.signedIn(r.Context(), who, f.Request.Server, user.Token); err != nil {
			b.log.WarnContext(r.Context(), "what the identity provider gave to a user was not kept; the user is asked again when it is needed", "server", f.Request.Server, "error", err)
		}
	}
	if f.Back != "" {
		b.arrived(w, r, c, b.settings.PublicURL+f.Back)
		return nil
	}
	b.back(w, r, f.Request, url.Values{"code": {b.seals[forCode].SealJSON(c)}})
	return nil
}

// identify returns the code for a user with these claims.
//
// Errors: Unauthenticated, Forbidden.
func (b *Server) identify(req request, claims map[string]any) (code, error) {
	who, err := b.settings.Identity(claims)
	if err == nil {
		err = b.settings.Admit(req.Server, claims)
	}
	if err != nil {
		return code{}, err
	}
	most := maxClaims
	if req.Server == resourceserver.Console {
		who.Props, most = nil, maxConsoleClaims
	}
	c := code{Request: req, Handle: strings.ToLower(rand.Text()), Tenant: who.Tenant, Principal: who.Principal, Issuer: b.settings.Issuer, Props: who.Props, Until: time.Now().Add(codeWithin).Unix()}
	if c.Claims, err = json.Marshal(b.settings.Relevant(req.Server, claims)); err != nil {
		return code{}, err
	}
	size := len(who.Props) // bytes of the claims that the token will carry
	for _, rule := range b.settings.ToolRules(req.Server, claims) {
		size += len(rule)
	}
	if resourceserver.IsGroup(req.Server) {
		size += len(c.Claims)
	}
	if len(c.Claims) > most || size > most {
		return code{}, storage.Errorf(storage.Forbidden, "you are in too many of the groups that this server's rules name; ask its operator to name fewer groups")
	}
	return c, nil
}

// maxClaims bounds the claims that decide who may use a server, in bytes.
const maxClaims = 2 << 10

// maxConsoleClaims bounds the claims in a token for the web console, which keeps the token in a
// cookie. Browsers drop cookies of more than 4 KiB.
const maxConsoleClaims = 1 << 10

func (b *Server) openLogin(client *http.Client) error {
	switch {
	case b.login != nil:
	case b.settings.Issuer == b.settings.PublicURL:
		u, err := url.Parse(b.settings.PublicURL)
		if err != nil || !isLoopback(u.Hostname()) {
			return errors.New("access: no issuer is set; the development sign-in is for loopback only")
		}
		b.login = anyName{b}
		b.routes["/login"] = route{"GET, POST", anyName{b}.serve, false}
	case b.settings.ClientID == "":
		return errors.New("access: client_id is not set: register this endpoint at the identity provider, with the redirect URI " + b.redirect())
	case b.settings.Issuer == gitHubIssuer:
		b.login = newGitHub(b.settings, client, gitHub())
	default:
		b.login = newProvider(b.settings, client)
	}
	return nil
}

// anyName lets users of this machine sign in with any name, so that a developer can try
// a client without an account.
type anyName struct{ b *Server }

// namedUser is what the page of anyName gives to the callback.
type namedUser struct {
	Name   string   `json:"n"`
	Groups []string `json:"g,omitempty"`
	Until  int64    `json:"x"`
}

func (anyName) Origin() string { return "" }

func (a anyName) URL(_ context.Context, at Attempt, _ string) (string, error) {
	return a.b.settings.PublicURL + "/login?" + url.Values{"state": {at.State}}.Encode(), nil
}

func (a anyName) User(_ context.Context, _ Attempt, _ string, q url.Values) (User, error) {
	var u namedUser
	if !a.b.seals[forName].OpenJSON(q.Get("code"), &u) || time.Now().Unix() > u.Until {
		return User{}, storage.Errorf(storage.Unauthenticated, "the sign-in is over; start again")
	}
	claims := map[string]any{"sub": u.Name, "name": u.Name, "email": u.Name + "@localhost", "email_verified": true}
	if len(u.Groups) > 0 {
		groups := []any{}
		for _, g := range u.Groups {
			groups = append(groups, g)
		}
		claims["groups"] = groups
	}
	return User{Claims: claims}, nil
}

// serve shows the page that asks for a name, and takes the name.
func (a anyName) serve(w http.ResponseWriter, r *http.Request) error {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil && net.ParseIP(host) != nil && !net.ParseIP(host).IsLoopback() {
		return bad("access_denied", "this sign-in takes any name, and is for the user of this machine only; the operator must name an identity provider")
	}
	if r.Method == http.MethodGet {
		// The page's form leads to the callback, which redirects to the client. The policy of the page
		// must therefore allow the client's address.
		state := r.URL.Query().Get("state")
		var f flow
		a.b.seals[forFlow].OpenJSON(a.b.cookies.Get(r, flowCookie(state)), &f)
		a.b.page(w, http.StatusOK, f.Request.Redirect, pageData{Title: "Sign in", State: state})
		return nil
	}
	f, err := form(r)
	if err != nil {
		return err
	}
	name := f.Get("name")
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`).MatchString(name) {
		return bad("invalid_request", "a name has up to 64 letters, digits and . _ -; go back to the page before")
	}
	u := namedUser{Name: name, Until: time.Now().Add(codeWithin).Unix()}
	for g := range strings.SplitSeq(f.Get("groups"), ",") {
		if g = strings.TrimSpace(g); g != "" && len(u.Groups) < 20 {
			u.Groups = append(u.Groups, g)
		}
	}
	http.Redirect(w, r, a.b.redirect()+"?"+url.Values{"state": {f.Get("state")}, "code": {a.b.seals[forName].SealJSON(u)}}.Encode(), http.StatusSeeOther)
	return nil
}
