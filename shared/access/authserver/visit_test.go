package authserver_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/authserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func (b *browser) asked(page string) *http.Request {
	b.t.Helper()
	r := httptest.NewRequestWithContext(b.t.Context(), http.MethodGet, at+page, nil)
	for _, c := range b.jar.Cookies(r.URL) {
		r.AddCookie(c)
	}
	return r
}

func (b *browser) unknown(when, page, server string) {
	b.t.Helper()
	if who, known := b.broker().Visitor(b.asked(page), server); known {
		b.t.Errorf("%s the visitor is %+v", when, who)
	}
}

// visits has the user of the browser sign in for a page about a server, and returns the
// URL to which the broker then sends the browser.
func (b *browser) visits(server, page, name string) string {
	b.t.Helper()
	w := httptest.NewRecorder()
	commontest.OK(b.t, b.broker().Visit(w, b.asked(page), server, page))
	res := replied(w)
	b.jar.SetCookies(b.asked(page).URL, res.cookies)
	to := res.Header.Get("Location")
	if b.outside != nil {
		u, err := url.Parse(to)
		commontest.OK(b.t, err)
		to = b.outside(u)
	} else {
		f := fields(text(b.t, b.get(to)))
		f.Set("name", name)
		to = b.open(http.MethodPost, at+"/login", f).Header.Get("Location")
	}
	return b.get(to).Header.Get("Location")
}

func TestAVisitorSignsInAndComesBackToThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, nil)
		b := s.browser()
		const page = "/connect?server=files&e=x%26y"
		b.unknown("before the sign-in", page, "files")
		commontest.EqualIn(t, "sent to", at+page, b.visits("files", page, "ada"))
		who, known := s.broker().Visitor(b.asked(page), "files")
		commontest.EqualIn(t, "known", true, known)
		commontest.Same(t, storage.Identity{Tenant: "default", Principal: "dev:ada"}, who)
		b.unknown("for another server", page, "other")
		commontest.EqualIn(t, "whom no rule admits is sent to", "", s.browser().visits("closed", "/connect?server=closed", "ada"))
		s.browser().unknown("in another browser", page, "files")
		commontest.EqualIn(t, "writes", 0, s.store.Counts().Writes)
		time.Sleep(15*time.Minute + time.Second)
		b.unknown("after a quarter of an hour", page, "files")
	})
}

// Otherwise a link to this endpoint could send a user who has just signed in to a foreign page.
func TestAVisitLeadsToPagesOfThisEndpointOnly(t *testing.T) {
	s := newSite(t, nil)
	b := s.browser()
	for server, pages := range map[string][]string{
		"files": {"", "connect", "https://evil.example/", "//evil.example/", `/\evil.example/`, `/a\b`}, "none": {"/connect"}, "": {"/connect"},
	} {
		for _, page := range pages {
			w := httptest.NewRecorder()
			if err := s.broker().Visit(w, b.asked("/connect"), server, page); err == nil || w.Header().Get("Location") != "" || len(w.Result().Cookies()) != 0 {
				t.Errorf("%q, %q: sent to %q, %v", server, page, w.Header().Get("Location"), err)
			}
		}
	}
}

// The broker passes on a provider's token under the principal of the user, whether the user
// signs in for a client or for the pages. A sign-in succeeds even if SignedIn fails.
func TestTheTokenOfTheProviderIsHandedOn(t *testing.T) {
	i := newIDP(t)
	var got []string
	s := i.site(t, func(c *authserver.Config) {
		c.SignedIn = func(_ context.Context, who storage.Identity, server string, token authserver.Token) error {
			got = append(got, strings.Join([]string{who.Tenant, who.Principal, server, token.Access, token.Refresh}, " "))
			return storage.Errorf(storage.Unavailable, "the store is down").Because(errors.New("test"))
		}
	})
	client := s.register(callback)
	if q := s.via(i.login()).signIn(ask(request(client)), "", ""); q.Get("code") == "" {
		t.Fatal(q)
	}
	commontest.EqualIn(t, "sent to", at+"/connect", s.via(i.login()).visits("other", "/connect", ""))
	s.via(i.login("error", "access_denied", "code", "")).signIn(ask(request(client)), "", "")
	commontest.Same(t, []string{"default corp:u1 files theirs ", "default corp:u1 other theirs "}, got)
	if strings.Contains(s.log.String(), "theirs") || !strings.Contains(s.log.String(), "was not kept") {
		t.Error(s.log.String())
	}
}
