package endpoints_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// Whatever address a client asks about, the metadata is that of the address, or
// there is none. A challenge for the address can be read.
func FuzzResourceMetadata(f *testing.F) {
	for _, seed := range [][2]string{{"/who/mcp", ""}, {"/mcp", "tools=search"}, {"/g/dev/sse/", "a=%zz"}, {"/who/mcp/x", ""}, {"//mcp", ""}, {"/who/mcp\"\r\nX: y", "\"\n"}, {"/who/ticket", "?"}} {
		f.Add(seed[0], seed[1])
	}
	s := newSite(f)
	s.signIn = true
	h := s.handler()
	send := func(method, path, query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, &http.Request{
			Method: method, URL: &url.URL{Path: path, RawQuery: query}, Host: strings.TrimPrefix(s.url, "http://"), Header: http.Header{"Accept": {"application/json, text/event-stream"}}, Body: http.NoBody,
		})
		return w
	}
	f.Fuzz(func(t *testing.T, path, query string) {
		w := send(http.MethodGet, "/.well-known/oauth-protected-resource"+path, query)
		var got struct {
			Resource string
			Issuers  []string `json:"authorization_servers"`
		}
		switch err := json.Unmarshal(w.Body.Bytes(), &got); {
		case w.Code >= http.StatusInternalServerError || err != nil:
			t.Errorf("%d %s", w.Code, w.Body)
		case w.Code == http.StatusOK && (!strings.HasPrefix(got.Resource, s.url+path) || len(got.Issuers) != 1 || got.Issuers[0] != s.url):
			t.Errorf("%q: %s", path, w.Body)
		}
		w = send(http.MethodPost, path, query)
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		for _, challenge := range w.Header().Values("WWW-Authenticate") {
			if _, err := oauthex.ParseWWWAuthenticate([]string{challenge}); err != nil || strings.ContainsAny(challenge, "\r\n") {
				t.Errorf("%q: %v", challenge, err)
			}
		}
	})
}
