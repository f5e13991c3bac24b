package credentials_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const exchangeGrant = "urn:ietf:params:oauth:grant-type:token-exchange"

// signed stores tokens that the identity provider has given to a principal at a sign-in.
func (s *site) signed(who, access, refresh string, until time.Duration) {
	s.t.Helper()
	commontest.OK(s.t, s.vault().KeepSignIn(s.t.Context(), "acme", who, access, refresh, time.Now().Add(until)))
}

// deals calls the server deals, as a client that cannot show its user a page.
func (s *site) deals(who string) reply {
	s.t.Helper()
	body := strings.Replace(toolCall, `"arguments":{}`, `"arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`, 1)
	return s.callAt("deals", who, "", body, map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "list"})
}

func (p *third) exchanges() (all []url.Values) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.asked {
		if f.Get("grant_type") == exchangeGrant {
			all = append(all, f)
		}
	}
	return all
}

func TestTheSignInIsExchangedOnceForManyCalls(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		s.signIn = signedIn{}
		s.signed("ada", "idp-of-ada", "idp-refresh", time.Hour)
		s.third.set(func() { s.third.slow = 50 * time.Millisecond })
		tenTimes(func() string { return s.deals("ada").body })
		asked := s.third.exchanges()
		want := url.Values{
			"grant_type": {exchangeGrant}, "subject_token": {"idp-of-ada"}, "subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
			"requested_token_type": {"urn:ietf:params:oauth:token-type:access_token"}, "audience": {"crm-api"}, "resource": {"https://crm.example"}, "scope": {"deals.read"},
			"client_id": {"c1"}, "client_secret": {"third-secret"},
		}
		commontest.SameIn(t, "exchanges", []url.Values{want}, asked)
		if len(s.box.woken) != 10 {
			t.Fatalf("%d calls got to the box", len(s.box.woken))
		}
		for _, d := range s.box.woken {
			if got := d.Secrets["crm"]; got.Value != "gho_access1" || len(d.Secrets) != 1 {
				t.Errorf("a call got %q of %d", got.Value, len(d.Secrets))
			}
		}
		s.hides("idp-of-ada", "idp-refresh", "gho_access", "third-secret")
		for _, provider := range []string{"crm", credentials.SignedIn} {
			row, err := s.store.UpstreamTokens().Get(t.Context(), storage.UpstreamTokenID("acme", "ada", provider))
			if err != nil || strings.Contains(row.Sealed, "idp-") || strings.Contains(row.Sealed, "gho_") || row.Expires.IsZero() {
				t.Errorf("%s: %+v %v", provider, row, err)
			}
		}
	})
}

// The token for a server is exchanged anew before its end. The token of the sign-in is
// renewed first if it ends, too.
func TestBothTokensOfAnExchangeAreRenewed(t *testing.T) {
	s := newSite(t, nil)
	s.signIn = signedIn{}
	s.signed("ada", "idp-of-ada", "idp-refresh", -time.Second)
	for range 2 {
		s.deals("ada")
	}
	for _, provider := range []string{"crm", credentials.SignedIn} {
		s.expireAt(provider, "ada", time.Now().Add(30*time.Second))
	}
	for range 2 {
		s.deals("ada")
	}
	var subjects []string
	for _, f := range s.third.exchanges() {
		subjects = append(subjects, f.Get("subject_token"))
	}
	commontest.Same(t, []string{"gho_access1", "gho_access3"}, subjects)
	commontest.EqualIn(t, "refreshes", 2, s.third.count("refresh_token"))
	if n := len(s.box.woken); n != 4 || s.box.woken[1].Secrets["crm"].Value != "gho_access2" || s.box.woken[3].Secrets["crm"].Value != "gho_access4" {
		t.Errorf("%d calls got to the box", n)
	}
}

func TestWithoutASignInNothingIsExchanged(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		if res := s.deals("ada"); !strings.Contains(res.body, `"isError":true`) || !strings.Contains(res.body, "nobody signs in here; ask who runs this endpoint to run it with --access oauth") || strings.Contains(res.body, "/connect?e=") {
			t.Errorf("nobody signs in: %s", res.body)
		}
		s.signIn = signedIn{}
		before := s.store.Counts()
		res := s.deals("ada")
		if !strings.Contains(res.body, `"isError":true`) || !strings.Contains(res.body, at+"/connect?e=") {
			t.Errorf("ada has not signed in: %s", res.body)
		}
		commontest.EqualIn(t, "writes", before.Writes, s.store.Counts().Writes)
		s.signed("ada", "idp-of-ada", "", -time.Second)
		commontest.Contains(t, "the sign-in is over", at+"/connect?e=", s.deals("ada").body)
		commontest.EqualIn(t, "exchanges", 0, len(s.third.exchanges()))
		s.asleep()
	})
}

// When the provider refuses the token of a sign-in, the next call does not exchange it
// again: the user is asked to sign in. Calls work after the user has signed in again.
func TestASignInThatIsNotTakenIsAskedForAgain(t *testing.T) {
	for _, code := range []string{"invalid_grant", "login_required"} {
		s := newSite(t, nil)
		s.signIn = signedIn{}
		s.signed("ada", "idp-of-ada", "idp-refresh", time.Hour)
		s.third.set(func() { s.third.says = code })
		for range 2 {
			commontest.Contains(t, code, at+"/connect?e=", s.deals("ada").body)
		}
		if n := len(s.third.exchanges()); n != 1 || len(s.box.woken) != 0 {
			t.Errorf("%s: %d exchanges, the box was woken %d times", code, n, len(s.box.woken))
		}
		s.third.set(func() { s.third.says = "" })
		s.signed("ada", "idp-of-ada-2", "", time.Hour)
		if s.deals("ada"); len(s.box.woken) != 1 {
			t.Errorf("%s: after the sign-in the box was woken %d times", code, len(s.box.woken))
		}
	}
}

// The user signs in again while the provider refuses the earlier token. The new token stays.
func TestASignInDuringARefusalStays(t *testing.T) {
	s := newSite(t, nil)
	s.signIn = signedIn{}
	s.signed("ada", "idp-of-ada", "", time.Hour)
	requests := 0
	s.third.set(func() {
		s.third.says = "invalid_grant"
		s.third.during = func() {
			if requests++; requests == 1 {
				s.signed("ada", "idp-of-ada-2", "", time.Hour)
			} else {
				s.third.set(func() { s.third.says = "" })
			}
		}
	})
	res := s.deals("ada")
	if n := len(s.third.exchanges()); n != 2 || len(s.box.woken) != 1 {
		t.Errorf("%d exchanges, the box was woken %d times: %s", n, len(s.box.woken), res.body)
	}
}

// While the provider is down, a call goes on with a token that is still good.
func TestAnExchangeGoesOnWhileTheProviderIsDown(t *testing.T) {
	s := newSite(t, nil)
	s.signIn = signedIn{}
	s.signed("ada", "idp-of-ada", "", time.Hour)
	s.deals("ada")
	s.expireAt("crm", "ada", time.Now().Add(30*time.Second))
	s.third.set(func() { s.third.down = true })
	for range 3 {
		s.deals("ada")
	}
	if len(s.box.woken) != 4 || len(s.third.exchanges()) != 2 {
		t.Errorf("%d calls got to the box, %d exchanges", len(s.box.woken), len(s.third.exchanges()))
	}
}

// The page has the user sign in, and tells the client when the exchange has worked.
func TestTheUserConnectsByASignIn(t *testing.T) {
	s := newSite(t, nil)
	s.signIn = signedIn{}
	res := s.deals("ada")
	link := res.body[strings.Index(res.body, "/connect?e="):]
	link = link[:strings.IndexAny(link, `, "`)]
	b := s.browser()
	page := b.follow(link, nil) // signs in, but the provider gives no token
	f := fields(page.body, "crm")
	if f == nil || !strings.Contains(page.body, "Sign in again") || strings.Contains(page.body, `name="secret"`) {
		t.Fatal(page.body)
	}
	s.signed("ada", "idp-of-ada", "idp-refresh", time.Hour)
	if res := b.follow("/connect", with(f, "action", "connect")); !strings.Contains(res.body, "CRM is connected") || len(s.told) > 1 {
		t.Errorf("%s, told %v", res.body, s.told)
	}
	// The removal of a provider also removes the token of the sign-in.
	own := b.follow("/connect?server=deals", nil)
	if res := b.follow("/connect", with(fields(own.body, "crm"), "action", "remove")); res.status != http.StatusOK {
		t.Fatal(res)
	}
	commontest.Contains(t, "", "/connect?e=", s.deals("ada").body)
}
