package authserver_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestACodeThatComesTwiceEndsItsGrant(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		g := s.code()
		_, got := s.token(g.form)
		commontest.EqualIn(t, "the first token is good", true, s.good(got["access_token"].(string), "files"))
		s.refusedWith(t, g.form, "invalid_grant")
		s.refusedWith(t, refreshing(g.client, got["refresh_token"].(string)), "invalid_grant")
		commontest.EqualIn(t, "it is good after the code came twice", false, s.good(got["access_token"].(string), "files"))
		s.refusedWith(t, g.form, "invalid_grant")
	})
}

func TestOfManyThatRedeemACodeOneWinsAtMost(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		g := s.code()
		var all sync.WaitGroup
		var won atomic.Int32
		tokens := make(chan string, 50)
		for range 50 {
			all.Go(func() {
				if res := s.do(http.MethodPost, at+"/token", g.form, nil); res.StatusCode == http.StatusOK {
					won.Add(1)
					tokens <- answer(t, res)["access_token"].(string)
				}
			})
		}
		all.Wait()
		close(tokens)
		if won.Load() > 1 {
			t.Errorf("%d have won", won.Load())
		}
		for token := range tokens {
			commontest.EqualIn(t, "the winner's token is good though the code was seen again", false, s.good(token, "files"))
		}
	})
}

func TestAnOldCodeIsRefused(t *testing.T) {
	for after, want := range map[time.Duration]int{59 * time.Second: http.StatusOK, 61 * time.Second: http.StatusBadRequest} {
		inTime(t, func(t *testing.T, s *site) {
			g := s.code()
			time.Sleep(after)
			if status, got := s.token(g.form); status != want {
				t.Error(after, status, got)
			}
		})
	}
}

// The browser keeps its cookie for longer than it is told to.
func TestASignInThatTakesTooLongIsRefused(t *testing.T) {
	for after, want := range map[time.Duration]int{14 * time.Minute: http.StatusSeeOther, 16 * time.Minute: http.StatusBadRequest} {
		inTime(t, func(t *testing.T, s *site) {
			b := s.browser()
			login := b.begin(ask(request(s.register(callback))))
			cookies := b.asked("/callback").Header
			time.Sleep(after)
			f := with(fields(text(t, b.get(login))), "name", "ada")
			to := b.open(http.MethodPost, at+"/login", f).Header.Get("Location")
			commontest.EqualIn(t, "after "+after.String(), want, s.do(http.MethodGet, to, nil, cookies).StatusCode)
		})
	}
}

// refresh exchanges a refresh token, which has to be good, and returns the next tokens.
func (s *site) refresh(client, token string) (access, refresh string) {
	s.t.Helper()
	got := s.granted(refreshing(client, token))
	return got["access_token"].(string), got["refresh_token"].(string)
}

func TestRefreshTokensRotate(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		client, _, first := s.tokens()
		_, second := s.refresh(client, first)
		_, again := s.refresh(client, first) // the first answer was lost, or another window refreshes too
		if second == first || again != second {
			t.Fatalf("two refreshes at once give %v and %v", second, again)
		}
		time.Sleep(2 * time.Minute)
		_, third := s.refresh(client, second)
		access, fourth := s.refresh(client, third)
		commontest.EqualIn(t, "the newest access token is good", true, s.good(access, "files"))
		// The first token is three generations old, so somebody else must have a copy. The
		// broker ends the grant.
		s.refusedWith(t, refreshing(client, first), "invalid_grant")
		s.refusedWith(t, refreshing(client, fourth), "invalid_grant")
		commontest.EqualIn(t, "a token of the family is good", false, s.good(access, "files"))
	})
}

// The answer to a refresh was lost while the lid of a laptop was closed. Nobody has used the
// next token, so nobody has stolen it.
func TestATokenIsGoodUntilItsSuccessorWasUsed(t *testing.T) {
	for _, after := range []time.Duration{65 * time.Second, 29 * 24 * time.Hour} {
		inTime(t, func(t *testing.T, s *site) {
			client, _, first := s.tokens()
			_, second := s.refresh(client, first)
			time.Sleep(after)
			access, again := s.refresh(client, first)
			if again != second || !s.good(access, "files") {
				t.Fatalf("after %s: %s, want %s", after, again, second)
			}
			s.refresh(client, second)
		})
	}
}

// Of three programs with one token the third comes when the other two have rotated it. It
// has to sign in again, and the others go on.
func TestATokenThatComesLateEndsNobodysGrant(t *testing.T) {
	for after, ends := range map[time.Duration]bool{time.Second: false, 59 * time.Minute: false, 61 * time.Minute: true} {
		inTime(t, func(t *testing.T, s *site) {
			client, _, first := s.tokens()
			time.Sleep(50 * time.Minute)
			_, second := s.refresh(client, first)
			access, third := s.refresh(client, second)
			time.Sleep(after)
			s.refusedWith(t, refreshing(client, first), "invalid_grant")
			s.refusedWith(t, refreshing(client, first), "invalid_grant")
			if status, got := s.token(refreshing(client, third)); (status != http.StatusOK) != ends {
				t.Errorf("after %s the token of the others: %d %v", after, status, got)
			}
			if after < resourceserver.AccessLife && s.good(access, "files") == ends {
				t.Errorf("after %s the access token of the others is good: %t", after, !ends)
			}
		})
	}
}

// A record of an earlier release has two hashes, and so has one that such a release has
// rotated since. Its tokens go on.
func TestAnOlderRecordGoesOn(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		client, _, first := s.tokens()
		_, second := s.refresh(client, first)
		_, third := s.refresh(client, second)
		all, err := s.store.Grants().List(t.Context(), "", "", 10)
		if err != nil || len(all) != 1 || all[0].Before == nil {
			t.Fatal(all, err)
		}
		all[0].Before = nil
		commontest.OK(t, s.store.Grants().Save(t.Context(), all[0]))
		time.Sleep(2 * time.Minute)
		if _, again := s.refresh(client, second); again != third {
			t.Fatal("the previous token gives another successor")
		}
		s.refresh(client, third)
		s.refusedWith(t, refreshing(client, second), "invalid_grant")
		s.refresh(client, third)
	})
}

func TestUnknownAndWrongTokensLookAlike(t *testing.T) {
	s := newSite(t, nil)
	client, _, token := s.tokens()
	other := s.register(callback)
	handle := strings.Split(token, "_")[1]
	_, want := s.token(refreshing(client, "dr_"+strings.Repeat("a", 26)+"_x"))
	for _, wrong := range []url.Values{
		refreshing(client, ""), refreshing(client, "dr_"+handle), refreshing(other, token), refreshing(client, "dr_"+handle+"_wrong"),
	} {
		if status, got := s.token(wrong); status != http.StatusBadRequest || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v: %d %v, want %v", wrong, status, got, want)
		}
	}
	// The last of these tokens has the handle of the grant, so its sender once had a
	// token of the grant. The broker has ended the grant.
	s.refusedWith(t, refreshing(client, token), "invalid_grant")
}

func TestManyRefreshesAtOnceGiveOneSuccessor(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		client, _, first := s.tokens()
		var all sync.WaitGroup
		var next sync.Map
		for range 20 {
			all.Go(func() {
				res := s.do(http.MethodPost, at+"/token", refreshing(client, first), nil)
				next.Store(fmt.Sprint(res.StatusCode, answer(t, res)["refresh_token"]), true)
			})
		}
		all.Wait()
		n := 0
		next.Range(func(k, _ any) bool { n++; return strings.HasPrefix(k.(string), "200 dr_") || n > 100 })
		commontest.EqualIn(t, "different answers", 1, n)
	})
}

func TestAGrantEndsAtLast(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		client := "mine" // a registration would end after 90 days, too
		s.config.Clients = map[string]resourceserver.Client{client: {RedirectURIs: []string{callback}}}
		token := s.granted(redeeming(client, s.browser().signIn(ask(request(client)), "ada", "").Get("code")))["refresh_token"].(string)
		for day := 0; ; day += 25 {
			status, got := s.token(refreshing(client, token))
			if status != http.StatusOK || day > 100 {
				commontest.EqualIn(t, "the day on which the grant has ended", 100, day)
				return
			}
			token = got["refresh_token"].(string)
			time.Sleep(25 * 24 * time.Hour)
		}
	})
}

func TestARevokedGrantIsRefusedEverywhere(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		faulty := storagetest.NewFaulty(s.store, 1, storagetest.Faults{})
		s.store = storagetest.NewCounting(faulty)
		client, access, refresh := s.tokens()
		_, other, _ := s.tokens()
		elsewhere := s.issued()
		who, err := verify(t, elsewhere, access, "files")
		commontest.OK(t, err)
		before := s.store.Counts()
		for range 100 {
			_, err = verify(t, elsewhere, access, "files")
			commontest.OK(t, err)
		}
		commontest.SameIn(t, "calls of the store, before and after 100 calls", before.Calls, s.store.Counts().Calls)
		if res := s.do(http.MethodPost, at+"/revoke", url.Values{"token": {access}, "client_id": {"somebody"}}, nil); res.StatusCode != http.StatusOK || !s.good(access, "files") {
			t.Error("another client may revoke it, or is told that it exists:", res.Status)
		}
		if res := s.do(http.MethodPost, at+"/revoke", url.Values{"token": {access}, "client_id": {client}}, nil); res.StatusCode != http.StatusOK {
			t.Fatal(res.Status)
		}
		time.Sleep(30 * time.Second)
		faulty.Set("LoadValue", storagetest.Faults{Lost: 1})
		for range 2 {
			_, err := verify(t, elsewhere, access, "files")
			commontest.EqualIn(t, "while the revoked grants cannot be read", storage.Unavailable, storage.CodeOf(err))
		}
		faulty.Set("LoadValue", storagetest.Faults{})
		if _, err := verify(t, elsewhere, access, "files"); storage.CodeOf(err) != storage.Unauthenticated {
			t.Error("the call after 30 s:", err)
		}
		commontest.EqualIn(t, "the message of an open connection", storage.Unauthenticated, storage.CodeOf(still(t, elsewhere, who, "files")))
		s.refusedWith(t, refreshing(client, refresh), "invalid_grant")
		commontest.EqualIn(t, "the token of another grant is good", true, s.good(other, "files"))
		time.Sleep(2 * time.Hour) // the list of revoked grants forgets those of expired tokens
		commontest.EqualIn(t, "the message of a connection whose token has expired", storage.Unauthenticated, storage.CodeOf(still(t, elsewhere, who, "files")))
		for _, token := range []string{"x", "dr_" + strings.Repeat("a", 26) + "_x", access, refresh} {
			commontest.EqualIn(t, token, http.StatusOK, s.do(http.MethodPost, at+"/revoke", url.Values{"token": {token}}, nil).StatusCode)
		}
		// A later revocation does not drop an earlier one whose tokens have not expired.
		time.Sleep(50 * time.Minute)
		s.do(http.MethodPost, at+"/revoke", url.Values{"token": {other}}, nil)
		commontest.EqualIn(t, "one of the tokens is good after 50 minutes", false, s.good(access, "files") || s.good(other, "files"))
	})
}

func TestTheSecretCanBeReplaced(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		client, access, refresh := s.tokens()
		s.config.Secret, s.config.Others = secret(1), [][]byte{secret(0)}
		commontest.EqualIn(t, "a token of the other secret is good", true, s.good(access, "files"))
		got := s.granted(refreshing(client, refresh))
		time.Sleep(resourceserver.AccessLife - time.Second)
		commontest.EqualIn(t, "a token of almost an hour is good", true, s.good(access, "files"))
		time.Sleep(time.Second)
		commontest.EqualIn(t, "a token of an hour is good", false, s.good(access, "files"))
		got = s.granted(refreshing(client, got["refresh_token"].(string)))
		s.config.Others = nil
		if s.good(access, "files") || !s.good(got["access_token"].(string), "files") {
			t.Error("without the other secret, its tokens are good or the new ones are not")
		}
	})
}

func TestKeysAreExchangedForTokens(t *testing.T) {
	inTime(t, func(t *testing.T, s *site) {
		key, record, err := apikey.Create(t.Context(), s.store, apikey.Grant{Tenant: "acme", Principal: "robot", Servers: []string{"files"}})
		commontest.OK(t, err)
		f := url.Values{"grant_type": {"client_credentials"}, "client_id": {record.ID}, "client_secret": {key}, "resource": {at + "/files/mcp"}}
		status, got := s.token(f)
		if status != http.StatusOK || got["refresh_token"] != nil || got["expires_in"] != 3600.0 {
			t.Fatal(status, got)
		}
		token := got["access_token"].(string)
		who, err := verify(t, s.issued(), token, "files")
		if err != nil || who.Tenant != "acme" || who.Principal != "robot" || who.Credential != record.ID {
			t.Errorf("%+v, %v", who, err)
		}
		_, err = verify(t, s.issued(), token, "other")
		commontest.EqualIn(t, "at another server is refused", "robot", storage.RefusedOf(err).Principal)
		s.refusedWith(t, with(f, "resource", at+"/other/mcp"), "invalid_target")
		s.refusedWith(t, with(f, "resource", ""), "invalid_target")
		s.refusedWith(t, with(f, "client_secret", key+"a"), "invalid_client")
		s.refusedWith(t, with(f, "client_secret", key[:len(key)-1]), "invalid_client")
		s.refusedWith(t, with(f, "client_id", "abcdefgh"), "invalid_client")
		elsewhere := s.issued()
		_, err = verify(t, elsewhere, token, "files")
		commontest.OK(t, err)
		_, err = apikey.Revoke(t.Context(), s.store, record.ID)
		commontest.OK(t, err)
		time.Sleep(30 * time.Second)
		if _, err := verify(t, elsewhere, token, "files"); storage.CodeOf(err) != storage.Unauthenticated {
			t.Error("the key was revoked 30 s ago:", err)
		}
	})
}

func TestRulesAreAskedAtSignInAndAtEachRefresh(t *testing.T) {
	s := newSite(t, nil)
	client := s.register(callback)
	target := ask(request(client, "resource", at+"/closed/mcp"))
	if q := s.browser().signIn(target, "eve", "eng"); q.Get("error") != "access_denied" || !strings.Contains(q.Get("error_description"), "may not use this server") {
		t.Error(q)
	}
	commontest.Contains(t, "the log", `"principal":"dev:eve"`, s.log.String())
	q := s.browser().signIn(target, "ada", "eng, admins")
	got := s.granted(redeeming(client, q.Get("code")))
	got = s.granted(refreshing(client, got["refresh_token"].(string)))
	s.config.Allow["closed"] = resourceserver.Rule{Groups: []string{"owners"}}
	s.refusedWith(t, refreshing(client, got["refresh_token"].(string)), "invalid_grant")
}
