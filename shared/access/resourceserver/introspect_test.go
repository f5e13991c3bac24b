package resourceserver_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func (i *issuer) asking(t *testing.T) *resourceserver.ResourceServer {
	t.Helper()
	return i.server(t, func(s *resourceserver.Settings) {
		s.Introspection, s.ClientSecret = &resourceserver.Introspection{Endpoint: "https://login.example/introspect", ClientID: "dor:mouse"}, "se cret"
	})
}

func (i *issuer) issue(token string, change map[string]any) string {
	i.set(func() { i.active[token] = claims(change) })
	return token
}

func TestOpaqueTokenIsWhatItsIssuerSaysItIs(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		form := map[string]string{}
		i.form = func(r *http.Request) {
			id, secret, _ := r.BasicAuth()
			form = map[string]string{"id": id, "secret": secret, "token": r.PostForm.Get("token"), "in url": r.URL.RawQuery}
		}
		s := i.asking(t)
		who, err := verify(s, i.issue("opaque", nil))
		if err != nil || who.Principal != "login.example:ada" {
			t.Errorf("%+v, %v", who, err)
		}
		commontest.SameIn(t, "the issuer was asked", map[string]string{"id": "dor%3Amouse", "secret": "se+cret", "token": "opaque", "in url": ""}, form)
		for name, token := range map[string]string{
			"unknown":        "other",
			"another server": i.issue("two", map[string]any{"aud": publicURL + "/two/mcp"}),
			"another issuer": i.issue("iss", map[string]any{"iss": "https://evil.example"}),
			"expired":        i.issue("old", map[string]any{"exp": time.Now().Unix() - 100}),
			"without an end": i.issue("endless", map[string]any{"exp": nil}),
			"bound to a key": i.issue("cnf", map[string]any{"cnf": map[string]any{}}),
		} {
			refused(t, name, storage.Unauthenticated, s, token)
		}
		refused(t, "without introspection", storage.Unauthenticated, i.server(t, nil), "opaque")
	})
}

// A revocation takes effect within 30 seconds: for a token, a connection and a ticket.
func TestTokenThatWasTakenBackIsRefusedWithinHalfAMinute(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		jwt := signed(t, claims(nil), nil)
		for _, token := range []string{i.issue("opaque", nil), i.issue(jwt, nil)} {
			s, elsewhere := i.asking(t), i.asking(t)
			i.times("/introspect")
			who, err := verify(s, token)
			commontest.OK(t, err)
			commontest.Check(t, confirm(elsewhere, who.Credential, "one"))
			for range 100 {
				taken(t, "a good token", s, token)
			}
			commontest.EqualIn(t, "questions to the issuer, want one for each process", 2, i.times("/introspect"))
			wantCode(t, "another server", confirm(s, who.Credential, "two"), storage.Unauthenticated)
			i.set(func() { delete(i.active, token) })
			time.Sleep(30 * time.Second)
			refused(t, "the token", storage.Unauthenticated, s, token)
			wantCode(t, "its connection", confirm(elsewhere, who.Credential, "one"), storage.Unauthenticated)
		}
	})
}

func TestJWTIsVerifiedBeforeTheIssuerIsAskedAboutIt(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.asking(t)
		forged := signed(t, claims(nil), nil)
		forged = forged[:len(forged)-8] + "AAAAAAAA"
		i.issue(forged, nil)
		refused(t, "forged", storage.Unauthenticated, s, forged)
		commontest.EqualIn(t, "questions", 0, i.times("/introspect"))
	})
}

func TestTroubleWithIntrospectionIsNotABadToken(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		for name, answer := range map[string]func(http.ResponseWriter) bool{
			"an error":  down(500),
			"no JSON":   func(w http.ResponseWriter) bool { _, _ = w.Write([]byte("<html>")); return true },
			"too large": func(w http.ResponseWriter) bool { _, _ = w.Write(make([]byte, 1<<20)); return true },
			"no answer": func(http.ResponseWriter) bool { time.Sleep(time.Hour); return true },
		} {
			i.set(func() { i.answer = answer })
			refused(t, name, storage.Unavailable, i.asking(t), i.issue("opaque", nil))
		}
		for name, active := range map[string]any{"active as a text": "true", "without active": nil} {
			i.set(func() {
				i.answer = func(w http.ResponseWriter) bool { write(w, claims(map[string]any{"active": active})); return true }
			})
			refused(t, name, storage.Unauthenticated, i.asking(t), "opaque")
		}
	})
}

func TestCredentialOfAConnectionIsNotTheToken(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.asking(t)
		who, err := verify(s, i.issue("opaque-opaque", nil))
		commontest.OK(t, err)
		for _, credential := range []string{"opaque-opaque", "idp:opaque-opaque", "idp:", "", "idp:99999999999", who.Credential + "A"} {
			wantCode(t, credential, confirm(s, credential, "one"), storage.Unauthenticated)
		}
		plain := i.server(t, nil)
		for _, credential := range []string{"", "idp:", "idp:x", "idp:0", "99999999999", who.Credential} {
			wantCode(t, credential, confirm(plain, credential, "one"), storage.Unauthenticated)
		}
	})
}

// A request about several servers makes the package ask the issuer once, even if the token is invalid.
func TestATokenForNoGroupIsAskedAboutOnce(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.asking(t)
		i.times("/introspect")
		_, err := s.VerifyGroup(t.Context(), "invented", "", []string{"one", "two", "three"})
		wantCode(t, "an invented token", err, storage.Unauthenticated)
		commontest.EqualIn(t, "questions about it, want one", 1, i.times("/introspect"))
		all, err := s.VerifyGroup(t.Context(), i.issue("opaque", nil), "", []string{"two", "one"})
		if err != nil || len(all) != 1 || all["one"].Principal == "" {
			t.Errorf("got %v, %v", all, err)
		}
		_, err = s.VerifyGroup(t.Context(), i.issue("opaque", nil), "", []string{"two"})
		wantCode(t, "another server", err, storage.Unauthenticated)
	})
}
