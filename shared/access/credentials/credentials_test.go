package credentials_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/credentials"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m, os.Getenv) }

func challengeOf(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func onOne(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	storetest.One(t, func(t *testing.T, open storetest.Open) { test(t, newSite(t, open(t))) })
}

func TestMissingTokenAsksTheUserAndWakesNoBox(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		s.recorded()
		visits := s.session("ada", "2025-11-25", `{"elicitation":{"url":{}}}`)
		urls, ids := elicited(t, s.calls("ada", visits).body)
		if _, why := sessions.FailureOf([]byte(s.calls("ada", visits).body), true); strings.Contains(why, "?e=") {
			t.Errorf("a log line has the address of the page: %s", why)
		}
		if len(urls) != 2 || !strings.HasPrefix(urls[0], at+"/connect?e=") || strings.Contains(urls[0], "ada") {
			t.Fatalf("got %q", urls)
		}
		if _, again := elicited(t, s.calls("ada", visits).body); !slices.Equal(again, ids) {
			t.Errorf("the second call asks %q, the first asked %q", again, ids)
		}

		for version, capabilities := range map[string]string{"2025-06-18": `{"elicitation":{}}`, "2025-11-25": `{"elicitation":{"form":{}}}`} {
			others := s.session("ada", version, capabilities)
			res := s.call("ada", others, toolCall, map[string]string{"MCP-Protocol-Version": version})
			if !strings.Contains(res.body, `"isError":true`) || !strings.Contains(res.body, at+"/connect?e=") || !strings.Contains(res.body, "GitHub and notes") {
				t.Errorf("%s: got %s", version, res.body)
			}
			if _, why := sessions.FailureOf([]byte(res.body), true); strings.Contains(why, "?e=") {
				t.Errorf("a log line has the address of the page: %s", why)
			}
		}
		s.asleep()
	})
}

func modernCall(s *site, who, capabilities, more string) reply {
	body := `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"list","arguments":{},` + more +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":` + capabilities + `}}}`
	return s.call(who, "", body, map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "list"})
}

func TestAModernClientIsAskedInARound(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		s.recorded()
		var asked struct {
			Result struct {
				ResultType    string
				RequestState  string
				InputRequests map[string]struct {
					Method string
					Params struct{ Mode, URL string }
				}
			}
		}
		res := modernCall(s, "ada", `{"elicitation":{"url":{}}}`, "")
		if err := json.Unmarshal([]byte(res.body), &asked); err != nil || asked.Result.ResultType != "input_required" || asked.Result.RequestState == "" || len(asked.Result.InputRequests) != 2 {
			t.Fatalf("got %s", res.body)
		}
		responses := map[string]any{}
		for key, in := range asked.Result.InputRequests {
			if in.Method != "elicitation/create" || in.Params.Mode != "url" || !strings.HasPrefix(in.Params.URL, at+"/connect?e=") {
				t.Errorf("%s: got %+v", key, in)
			}
			responses[key] = map[string]string{"action": "accept"}
		}
		if res := modernCall(s, "ada", `{}`, ""); !strings.Contains(res.body, `"isError":true`) || !strings.Contains(res.body, "/connect?e=") {
			t.Errorf("a client that cannot open pages gets %s", res.body)
		}
		s.asleep()
		s.connect("ada")
		given, err := json.Marshal(responses)
		commontest.OK(t, err)
		more := fmt.Sprintf(`"requestState":%q,"inputResponses":%s,`, asked.Result.RequestState, given)
		modernCall(s, "ada", `{"elicitation":{"url":{}}}`, more)
		if len(s.box.woken) != 1 || s.box.woken[0].Secrets["github"].Value != "gho_access1" {
			t.Errorf("after the user has connected, the box gets %d calls", len(s.box.woken))
		}
	})
}

func TestTheClientHearsThatItsUserHasConnected(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		s.recorded()
		id := s.session("ada", "2025-11-25", `{"elicitation":{"url":{}}}`)
		urls, ids := elicited(t, s.calls("ada", id).body)
		b := s.browser()
		page := b.identified(urls[0], "ada")
		if res := b.follow("/connect", with(fields(page.body, "github"), "action", "connect")); !strings.Contains(res.body, "GitHub is connected") {
			t.Fatal(res)
		}
		events, err := s.store.Read(t.Context(), storage.ID(id), storage.Standalone, 0, 10)
		if err != nil || len(events.Events) != 1 {
			t.Fatal(events, err)
		}
		want := `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"` + ids[0] + `"}}`
		commontest.Same(t, want, string(events.Events[0].Raw))
		// The other third party is not connected yet.
		if left, _ := elicited(t, s.calls("ada", id).body); len(left) != 1 {
			t.Errorf("asked for %q", left)
		}
	})
}

func TestPageOpenedBySomebodyElseStoresNothing(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		s.recorded()
		id := s.session("mallory", "2025-11-25", `{"elicitation":{"url":{}}}`)
		urls, _ := elicited(t, s.calls("mallory", id).body)
		victim := s.browser()
		if res := victim.identified(urls[0], "ada"); res.status != http.StatusForbidden || strings.Contains(res.body, "<form") {
			t.Errorf("ada opens mallory's link, and gets the form or a status that is not 403: %d", res.status)
		}
		// Ada is known to the page already.
		own := victim.identified("/connect?server=issues", "ada")
		commontest.EqualIn(t, "ada, whom the page knows, opens mallory's link", http.StatusForbidden, victim.follow(urls[0], nil).status)
		link, err := url.Parse(urls[1])
		commontest.OK(t, err)
		forged := with(fields(own.body, "notes"), "e", link.Query().Get("e"), "action", "connect", "secret", "key of ada")
		commontest.EqualIn(t, "ada's form with mallory's link", http.StatusForbidden, victim.follow("/connect", forged).status)
		commontest.EqualIn(t, "codes that were redeemed", 0, s.third.count("authorization_code"))
		commontest.EqualIn(t, "secrets that were stored", 0, len(s.values("ada"))+len(s.values("mallory")))
	})
}

func TestAnswerOfTheThirdPartyBelongsToTheBrowserThatBegan(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		mallory, ada := s.browser(), s.browser()
		page := mallory.identified("/connect?server=issues", "mallory")
		begun := func() string {
			to := mallory.open("/connect", with(fields(page.body, "github"), "action", "connect")).header.Get("Location")
			u, err := url.Parse(to)
			commontest.OK(t, err)
			return mallory.outside(u).header.Get("Location")
		}
		for iss, want := range map[string]int{"https://evil.example": http.StatusBadRequest, s.third.URL: http.StatusOK} {
			commontest.EqualIn(t, "an answer of "+iss, want, mallory.open(begun()+"&iss="+url.QueryEscape(iss), nil).status)
		}
		commontest.EqualIn(t, "codes that were redeemed", 1, s.third.count("authorization_code"))
		back := begun()
		ada.identified("/connect?server=issues", "ada")
		if res := ada.open(back, nil); res.status != http.StatusBadRequest || s.third.count("authorization_code") != 1 {
			t.Errorf("%d %s", res.status, res.body)
		}
		commontest.Equal(t, http.StatusOK, mallory.open(back, nil).status)
		commontest.EqualIn(t, "a second time", http.StatusBadRequest, mallory.open(back, nil).status)
		refused := mallory.open(begun()+"&error=access_denied&error_description=not+%3Cassigned", nil)
		commontest.Contains(t, "the page of a refusal", "it says access_denied: not &lt;assigned.", refused.body)
	})
}

func TestATokenIsForItsPrincipalOnly(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		s.recorded()
		s.connect("ada")
		s.connect("bob")
		for _, who := range []string{"ada", "bob"} {
			id := s.session(who, "2025-11-25", `{}`)
			s.calls(who, id)
		}
		var got []string
		for _, d := range s.box.woken {
			got = append(got, d.Client.Principal+" "+d.Secrets["github"].Value+" "+d.Secrets["notes"].Value)
			if shown := fmt.Sprintf("%v %+v %#v", d.Secrets, d.Secrets, d.Secrets); strings.Contains(shown, "gho_") || strings.Contains(shown, "notes-key") {
				t.Errorf("a log would show %s", shown)
			}
		}
		commontest.Same(t, []string{"ada gho_access1 notes-key-of-ada", "bob gho_access2 notes-key-of-bob"}, got)
		s.hides("gho_", "ghr_", "notes-key", "third-secret", "code1")
		// A row that is copied to another principal does not open.
		row, err := s.store.UpstreamTokens().Get(t.Context(), storage.UpstreamTokenID("acme", "ada", "notes"))
		if err != nil || strings.Contains(row.Sealed, "notes-key") {
			t.Fatal(row, err)
		}
		row.ID, row.Principal = storage.UpstreamTokenID("acme", "eve", "notes"), "eve"
		commontest.OK(t, s.store.UpstreamTokens().Create(t.Context(), row))
		commontest.EqualIn(t, "secrets of eve", 0, len(s.values("eve")))
	})
}

func TestTenCallsWithAnExpiredTokenRefreshOnce(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open storetest.Open) {
		s := newSite(t, open(t))
		s.connect("ada")
		s.third.set(func() { s.third.slow = 50 * time.Millisecond })
		s.expireAt("github", "ada", time.Now().Add(-time.Second))
		got := tenTimes(func() string {
			has, _, err := s.vault().Get(t.Context(), "acme", "ada", []string{"github"})
			return fmt.Sprint(has["github"].Value, err)
		})
		commontest.Same(t, map[string]int{"gho_access2<nil>": 10}, got)
		commontest.EqualIn(t, "refreshes", 1, s.third.count("refresh_token"))
	})
}

// The third party takes a refresh token once, so its answer is kept even if the client has left.
func TestARefreshOutlivesItsClient(t *testing.T) {
	s := newSite(t, nil)
	s.connect("ada")
	s.expireAt("github", "ada", time.Now().Add(-time.Second))
	ctx, leave := context.WithCancel(t.Context())
	s.third.set(func() { s.third.during, s.third.slow = leave, 50*time.Millisecond })
	_, _, _ = s.vault().Get(ctx, "acme", "ada", []string{"github"}) // nobody waits for the result
	commontest.Equal(t, "gho_access2", s.values("ada")["github"])
	commontest.EqualIn(t, "refreshes", 1, s.third.count("refresh_token"))
}

func TestARefusedRefreshAsksTheUserOnce(t *testing.T) {
	onOne(t, func(t *testing.T, s *site) {
		s.recorded()
		s.connect("ada")
		id := s.session("ada", "2025-11-25", `{"elicitation":{"url":{}}}`)
		s.expireAt("github", "ada", time.Now().Add(-time.Second))
		s.third.set(func() { s.third.refuses = true })
		asked := tenTimes(func() string {
			_, ids := elicited(t, s.calls("ada", id).body)
			return strings.Join(ids, " ")
		})
		if n := s.third.count("refresh_token"); n != 1 || len(asked) != 1 {
			t.Errorf("%d refreshes, asked %v", n, asked)
		}
		commontest.Contains(t, "the error", "GitHub, which has ended", s.calls("ada", id).body)
		s.asleep()
		s.third.set(func() { s.third.refuses = false })
		s.connect("ada")
		if has := s.values("ada"); has["github"] == "" {
			t.Errorf("connected anew, ada has %v", has)
		}
	})
}

// A token that is still good is used even while the third party is down.
func TestAThirdPartyThatIsDownIsAskedAgainLater(t *testing.T) {
	s := newSite(t, nil)
	s.connect("ada")
	s.third.set(func() { s.third.down = true })
	s.expireAt("github", "ada", time.Now().Add(30*time.Second))
	for range 3 {
		commontest.Equal(t, "gho_access1", s.values("ada")["github"])
	}
	commontest.EqualIn(t, "refreshes", 1, s.third.count("refresh_token"))
	s.expireAt("github", "ada", time.Now().Add(-time.Second))
	if _, _, err := s.vault().Get(t.Context(), "acme", "ada", []string{"github"}); storage.CodeOf(err) != storage.Unavailable {
		t.Errorf("got %v", err)
	}
	row, err := s.store.UpstreamTokens().Get(t.Context(), storage.UpstreamTokenID("acme", "ada", "github"))
	if err != nil || row.Sealed == "" {
		t.Errorf("the refresh token is gone: %v", err)
	}
}

func TestSecretsAreSetAndRemoved(t *testing.T) {
	s := newSite(t, nil)
	for _, value := range []string{"first", "second"} {
		commontest.OK(t, s.vault().Put(t.Context(), "acme", "ada", "notes", value))
		commontest.Equal(t, value, s.values("ada")["notes"])
	}
	for _, value := range []string{"", strings.Repeat("x", credentials.MaxSecret+1)} {
		commontest.Equal(t, storage.Invalid, storage.CodeOf(s.vault().Put(t.Context(), "acme", "ada", "notes", value)))
	}
	for _, want := range []bool{true, false} {
		there, err := s.vault().Remove(t.Context(), "acme", "ada", "notes")
		if err != nil || there != want || len(s.values("ada")) != 0 {
			t.Errorf("removed is %v, want %v: %v", there, want, err)
		}
	}
}

func TestARowOutlivesTheSecretThatSealsIt(t *testing.T) {
	s := newSite(t, nil)
	s.connect("ada")
	s.secret, s.others = secret('b'), [][]byte{secret('a')}
	commontest.Equal(t, "notes-key-of-ada", s.values("ada")["notes"])
	s.others = nil
	commontest.EqualIn(t, "without the old secret", "notes-key-of-ada", s.values("ada")["notes"])
}
