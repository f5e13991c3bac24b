package pipe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/durable"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

// signInWithin is the longest time that a sign-in in the browser may take.
const signInWithin = 10 * time.Minute

// signIn has the user's access tokens for one endpoint. They are in a file that only the user can
// read, so that all pipes to the endpoint share them. If there are none, the pipe opens the
// browser, and gets them by OAuth 2.1 with PKCE and a redirect to a port of this machine.
type signIn struct {
	Config
	http *http.Client
	path string // path of the file with the tokens

	mu     sync.Mutex // guards source, state and server
	source oauth2.TokenSource
	state  string       // OAuth state of the current sign-in
	server *http.Server // serves the redirect URL

	asking   sync.Mutex      // held during a sign-in; guards redirect
	redirect string          // redirect URL; "" until the server is started
	back     chan url.Values // queries of requests to the redirect URL
}

// kept is the content of the file with the tokens for an endpoint.
type kept struct {
	URL      string           `json:"url"`
	ClientID string           `json:"client_id"`
	Secret   string           `json:"client_secret,omitempty"` // client secret, if the authorization server gave one
	TokenURL string           `json:"token_url"`
	Style    oauth2.AuthStyle `json:"auth_style,omitempty"`
	Token    *oauth2.Token    `json:"token"`
}

func newSignIn(c Config, client *http.Client) *signIn {
	sum := sha256.Sum256([]byte(c.URL))
	s := &signIn{Config: c, http: client, path: filepath.Join(c.Tokens, hex.EncodeToString(sum[:12])+".json"), back: make(chan url.Values, 1)}
	s.load(false)
	return s
}

// close stops the server of the redirect URL.
func (s *signIn) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		_ = s.server.Close()
	}
}

// token returns an access token. It returns "" if there is none, or if it has expired and cannot be
// refreshed.
func (s *signIn) token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source == nil {
		return ""
	}
	t, err := s.source.Token()
	if err != nil {
		return ""
	}
	return t.AccessToken
}

// wanted reports whether a response requires a sign-in, or one with more scopes.
func (s *signIn) wanted(resp *http.Response) bool {
	return resp.StatusCode == http.StatusUnauthorized ||
		resp.StatusCode == http.StatusForbidden && strings.Contains(strings.Join(resp.Header.Values("WWW-Authenticate"), " "), "insufficient_scope")
}

// authorize gets another access token after a refused request. It prefers a token that another
// request or another pipe has got meanwhile. If first is set, it tries the refresh token before the
// user must sign in. It closes the response.
func (s *signIn) authorize(ctx context.Context, resp *http.Response, first bool) error {
	defer func() { _ = resp.Body.Close() }()
	used := strings.TrimPrefix(resp.Request.Header.Get("Authorization"), "Bearer ")
	s.asking.Lock()
	defer s.asking.Unlock()
	if s.token() != used {
		return nil
	}
	release, err := s.alone(ctx)
	if err != nil {
		return err
	}
	defer release()
	if s.load(false) && s.token() != used {
		return nil
	}
	if first && resp.StatusCode == http.StatusUnauthorized && s.load(true) && s.token() != "" {
		return nil
	}
	handler, err := s.handler()
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, signInWithin)
	defer cancel()
	if err := handler.Authorize(within, resp.Request, resp); err != nil {
		if within.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("nobody did within %s", signInWithin)
		}
		return err
	}
	return nil
}

// handler returns the OAuth flow. The first call starts the server of the redirect URL.
func (s *signIn) handler() (*auth.AuthorizationCodeHandler, error) {
	if s.redirect == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // listening on this machine returns at once
		if err != nil {
			return nil, err
		}
		s.redirect = "http://" + l.Addr().String() + "/callback"
		server := &http.Server{Handler: http.HandlerFunc(s.callback), ReadHeaderTimeout: 10 * time.Second}
		s.mu.Lock()
		s.server = server
		s.mu.Unlock()
		go func() { _ = server.Serve(l) }()
	}
	c := &auth.AuthorizationCodeHandlerConfig{
		RedirectURL: s.redirect, AuthorizationCodeFetcher: s.ask, RequestRefreshToken: true, AcceptUnadvertisedIss: true, Client: s.http,
		NewTokenSource: func(ctx context.Context, c *oauth2.Config, t *oauth2.Token) (oauth2.TokenSource, error) {
			return s.keep(ctx, c, t)
		},
	}
	switch {
	case strings.HasPrefix(s.ClientID, "https://"):
		c.ClientIDMetadataDocumentConfig = &auth.ClientIDMetadataDocumentConfig{URL: s.ClientID}
	case s.ClientID != "":
		c.PreregisteredClient = &oauthex.ClientCredentials{ClientID: s.ClientID}
	default:
		c.DynamicClientRegistrationConfig = &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			RedirectURIs: []string{s.redirect}, ClientName: "Dormouse", TokenEndpointAuthMethod: "none",
			GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
		}}
	}
	return auth.NewAuthorizationCodeHandler(c)
}

// ask opens a page in the user's browser, and waits for the redirect.
func (s *signIn) ask(ctx context.Context, page *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
	u, err := url.Parse(page.URL)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.state = u.Query().Get("state")
	s.mu.Unlock()
	_, _ = fmt.Fprintf(s.Log, "dormouse stdio: sign in with your browser: %s\n", page.URL)
	s.Browse(page.URL)
	select {
	case q := <-s.back:
		if why := webpage.Refusal(q); why != "" {
			return nil, errors.New("it was refused in the browser: " + why)
		}
		return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// callback serves the redirect URL. It ignores requests without the state of the current sign-in.
func (s *signIn) callback(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.mu.Lock()
	fits := s.state != "" && q.Get("state") == s.state && r.URL.Path == "/callback"
	if fits {
		s.state = ""
	}
	s.mu.Unlock()
	if !fits {
		webpage.Write(w, http.StatusNotFound, webpage.Page{Title: "Nothing waits for this", Body: webpage.Text("Start the sign-in again.")})
		return
	}
	page := webpage.Page{Title: "Signed in", Body: webpage.Text("You can close this page.")}
	if why := webpage.Refusal(q); why != "" {
		page = webpage.Page{Title: "Not signed in", Body: webpage.Text("The authorization server has refused: "+why) + page.Body}
	}
	webpage.Write(w, http.StatusOK, page)
	s.back <- q
}

// load reads the tokens from the file, and reports whether there are any. If refresh is set, it
// treats the access token as expired.
func (s *signIn) load(refresh bool) bool {
	text, err := os.ReadFile(s.path)
	var k kept
	if err != nil || json.Unmarshal(text, &k) != nil || k.URL != s.URL || k.Token == nil || s.ClientID != "" && k.ClientID != s.ClientID {
		return false
	}
	if refresh {
		k.Token.Expiry = time.Unix(1, 0)
	}
	c := &oauth2.Config{ClientID: k.ClientID, ClientSecret: k.Secret, Endpoint: oauth2.Endpoint{TokenURL: k.TokenURL, AuthStyle: k.Style}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.source = s.saving(context.WithValue(context.Background(), oauth2.HTTPClient, s.http), c, k.Token)
	return true
}

// keep stores the first tokens of a sign-in, and uses them from now on.
func (s *signIn) keep(ctx context.Context, c *oauth2.Config, t *oauth2.Token) (oauth2.TokenSource, error) {
	if err := s.save(c, t); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.source = s.saving(ctx, c, t)
	return oauth2.StaticTokenSource(t), nil
}

// saving returns a token source that refreshes t when it expires, and saves the new tokens.
func (s *signIn) saving(ctx context.Context, c *oauth2.Config, t *oauth2.Token) oauth2.TokenSource {
	from := c.TokenSource(ctx, t)
	return oauth2.ReuseTokenSource(t, sourceFunc(func() (*oauth2.Token, error) {
		t, err := from.Token()
		if err == nil {
			err = s.save(c, t)
		}
		return t, err
	}))
}

type sourceFunc func() (*oauth2.Token, error)

func (f sourceFunc) Token() (*oauth2.Token, error) { return f() }

// save writes the tokens to the file, which only the user can read.
func (s *signIn) save(c *oauth2.Config, t *oauth2.Token) error {
	text, err := json.Marshal(kept{URL: s.URL, ClientID: c.ClientID, Secret: c.ClientSecret, TokenURL: c.Endpoint.TokenURL, Style: c.Endpoint.AuthStyle, Token: t})
	if err == nil {
		err = os.MkdirAll(s.Tokens, 0o700)
	}
	if err == nil {
		err = durable.WriteFile(s.path, text, 0o600)
	}
	return err
}

// alone waits until no other pipe of this user signs in at the endpoint, and keeps others waiting
// until release is called.
func (s *signIn) alone(ctx context.Context) (release func(), err error) {
	if err := os.MkdirAll(s.Tokens, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	locked := make(chan error, 1)
	go func() {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		locked <- err
	}()
	select {
	case err := <-locked:
		return func() { _ = f.Close() }, err
	case <-ctx.Done():
		return nil, ctx.Err() // the goroutine still waits for the lock; the end of the program ends it
	}
}
