package resourceserver_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestKeyThatIsNotKnownIsFetchedOnce(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, nil)
		taken(t, "a good token", s, signed(t, claims(nil), nil))
		i.times("/keys")
		i.set(func() { i.keys = append(i.keys, public("new", signers().other)) })
		time.Sleep(time.Minute)
		token := signedBy(t, jwt.SigningMethodRS256, signers().other, "new", claims(nil), nil)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				taken(t, "a good token", s, token)
			})
		}
		all.Wait()
		commontest.EqualIn(t, "fetches for a key that 50 callers wanted", 1, i.times("/keys"))
		for minute := range 2 {
			time.Sleep(30 * time.Second)
			for n := range 500 {
				refused(t, "a key that nobody has", storage.Unauthenticated, s, signed(t, claims(map[string]any{"n": n}), map[string]any{"kid": fmt.Sprint("k", minute, n)}))
			}
			if n := i.times("/keys"); n > 1 {
				t.Errorf("%d fetches in half a minute", n)
			}
		}
	})
}

func TestKeysAreUsedForADayWhileTheyCannotBeFetched(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, nil)
		fresh := func() string { return signed(t, claims(nil), nil) }
		taken(t, "a good token", s, fresh())
		i.set(func() { i.answer = down(503) })
		for range 23 {
			time.Sleep(time.Hour)
			taken(t, "a good token", s, fresh())
			refused(t, "a key that is not known", storage.Unavailable, s, signed(t, claims(nil), map[string]any{"kid": "new"}))
		}
		time.Sleep(time.Hour)
		refused(t, "after a day", storage.Unavailable, s, fresh())
		i.set(func() { i.answer = nil })
		time.Sleep(30 * time.Second)
		taken(t, "the issuer is back", s, fresh())
	})
}

func TestKeyThatWasWithdrawnIsUsedForAQuarterOfAnHourAtMost(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		s := i.server(t, nil)
		token := signed(t, claims(map[string]any{"exp": time.Now().Unix() + 86400}), nil)
		time.Sleep(time.Second)
		taken(t, "a good token", s, token)
		i.set(func() { i.keys = i.keys[1:] })
		for range 4 {
			time.Sleep(3*time.Minute + 45*time.Second)
			_, _ = verify(s, token)
		}
		refused(t, "withdrawn", storage.Unauthenticated, s, token)
	})
}

func TestKeySetsAreBounded(t *testing.T) {
	inTime(t, func(t *testing.T, i *issuer) {
		many := make([]string, 10_000)
		for n := range many {
			many[n] = "{}"
		}
		text := func(document string) func(http.ResponseWriter) bool {
			return func(w http.ResponseWriter) bool { _, _ = io.WriteString(w, document); return true }
		}
		redirect := func(to string, times int) func(http.ResponseWriter) bool {
			return func(w http.ResponseWriter) bool {
				if times--; times < 0 {
					return false // the good keys are there
				}
				w.Header().Set("Location", to)
				return down(302)(w)
			}
		}
		with := func(k map[string]any, change map[string]any) func(http.ResponseWriter) bool {
			maps.Copy(k, change)
			return func(w http.ResponseWriter) bool { write(w, map[string]any{"keys": []any{k}}); return true }
		}
		point, err := signers().ec.PublicKey.Bytes()
		commontest.OK(t, err)
		point = point[1:] // without the byte for its form
		b64 := base64.RawURLEncoding.EncodeToString
		for name, answer := range map[string]func(w http.ResponseWriter) bool{
			"10 MB":              text(`{"keys":[],"more":"` + strings.Repeat("x", 10<<20)),
			"10,000 keys":        text(`{"keys":[` + strings.Join(many, ",") + `]}`),
			"a slow drip":        func(http.ResponseWriter) bool { time.Sleep(time.Hour); return true },
			"another host":       redirect("https://169.254.169.254/keys", 1),
			"another scheme":     redirect("http://login.example/keys", 1),
			"round and round":    redirect("https://login.example/keys", 1000),
			"no JSON":            text("<html>"),
			"symmetric keys":     text(`{"keys":[{"kty":"oct","k":"AAAA","kid":"rsa"}]}`),
			"keys to encrypt by": with(public("rsa", signers().rsa), map[string]any{"use": "enc"}),
			// Both halves together have the right length.
			"a point whose halves are longer and shorter": with(public("ec", signers().ec), map[string]any{"x": b64(point[:31]), "y": b64(point[31:])}),
		} {
			s := i.server(t, func(s *resourceserver.Settings) { s.JWKS = "https://login.example/keys" })
			i.set(func() { i.answer, i.asked = answer, nil })
			begun := time.Now()
			refused(t, name, storage.Unavailable, s, signed(t, claims(nil), nil))
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("%s: given up after %s", name, took)
			}
			if n := i.times("/keys"); n > 5 {
				t.Errorf("%s: %d requests", name, n)
			}
		}
	})
}
