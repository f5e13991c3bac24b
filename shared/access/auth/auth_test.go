package auth_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/auth"
	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

// rig is a store with keys that counts its calls and can fail.
type rig struct {
	t      *testing.T
	count  *sessiontest.Counting
	faulty *sessiontest.Faulty
}

func newRig(t *testing.T) *rig {
	faulty := sessiontest.NewFaulty(sessiontest.NewMemory(), 1, sessiontest.Faults{})
	return &rig{t, sessiontest.NewCounting(faulty), faulty}
}

// inBubble runs a test in fake time.
func inBubble(t *testing.T, test func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t)) })
}

// key makes a key for alice of acme.
func (r *rig) key(life time.Duration, servers ...string) string {
	r.t.Helper()
	key, _, err := auth.Create(r.t.Context(), r.count, auth.Grant{Tenant: "acme", Principal: "alice", Servers: servers, Life: life})
	if err != nil {
		r.t.Fatal(err)
	}
	return key
}

func (r *rig) revoke(name string) session.Key {
	r.t.Helper()
	k, err := auth.Revoke(r.t.Context(), r.count, name)
	if err != nil {
		r.t.Fatal(err)
	}
	return k
}

func (r *rig) record(key string) session.Key {
	r.t.Helper()
	k, err := r.count.Keys().Get(r.t.Context(), idOf(key))
	if err != nil {
		r.t.Fatal(err)
	}
	return k
}

// cost returns the reads and writes since its last call.
func (r *rig) cost() [2]int {
	c := r.count.Counts()
	r.count.Reset()
	return [2]int{c.Reads, c.Writes}
}

func idOf(key string) string { return strings.Split(key, "_")[1] }

// as authenticates a request with these values of Authorization.
func as(a auth.Authenticator, server string, values ...string) (session.Identity, error) {
	q := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/s/mcp", nil)
	for _, v := range values {
		q.Header.Add("Authorization", v)
	}
	return a.Authenticate(q, server)
}

func wantCode(t *testing.T, err error, code session.Code) {
	t.Helper()
	if session.CodeOf(err) != code {
		t.Errorf("error %v has code %q, want %q", err, session.CodeOf(err), code)
	}
}

func TestKeySaysWhoseItIs(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s", "t")
	want := session.Identity{Tenant: "acme", Principal: "alice", Credential: idOf(key)}
	for _, header := range []string{"Bearer " + key, "bearer " + key, "BEARER  " + key + " "} {
		for _, server := range []string{"s", "t"} {
			got, err := as(auth.NewKeys(r.count), server, header)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		}
	}
}

func TestKeyForEveryServerOpensEveryServer(t *testing.T) {
	r := newRig(t)
	if _, err := as(auth.NewKeys(r.count), "any", "Bearer "+r.key(0, session.EveryServer)); err != nil {
		t.Error(err)
	}
}

func TestRequestsAreRefusedWithoutAnEffect(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		good, gone, old := r.key(0, "s"), r.key(0, "s"), r.key(time.Hour, "s")
		r.revoke(idOf(gone))
		time.Sleep(time.Hour)
		other := good[:len(good)-1] + map[bool]string{true: "b", false: "a"}[good[len(good)-1] == 'a']
		for name, test := range map[string]struct {
			headers []string
			code    session.Code
			reads   int
		}{
			"nothing":           {nil, session.Unauthenticated, 0},
			"an empty header":   {[]string{""}, session.Unauthenticated, 0},
			"another scheme":    {[]string{"Basic " + good}, session.Unauthenticated, 0},
			"no scheme":         {[]string{good}, session.Unauthenticated, 0},
			"no key":            {[]string{"Bearer "}, session.Unauthenticated, 0},
			"two headers":       {[]string{"Bearer " + good, "Bearer " + good}, session.Invalid, 0},
			"two keys":          {[]string{"Bearer " + good + " " + good}, session.Unauthenticated, 0},
			"only the id":       {[]string{"Bearer dm_" + idOf(good)}, session.Unauthenticated, 0},
			"no secret":         {[]string{"Bearer dm_" + idOf(good) + "_"}, session.Unauthenticated, 0},
			"longer":            {[]string{"Bearer " + good + "a"}, session.Unauthenticated, 0},
			"upper case":        {[]string{"Bearer " + strings.ToUpper(good)}, session.Unauthenticated, 0},
			"a ticket":          {[]string{"Bearer dt_" + good[12:]}, session.Unauthenticated, 0},
			"an id not known":   {[]string{"Bearer dm_aaaaaaaa_" + good[12:]}, session.Unauthenticated, 1},
			"another secret":    {[]string{"Bearer " + other}, session.Unauthenticated, 1},
			"a revoked key":     {[]string{"Bearer " + gone}, session.Unauthenticated, 1},
			"an expired key":    {[]string{"Bearer " + old}, session.Unauthenticated, 1},
			"for other servers": {[]string{"Bearer " + good}, session.Forbidden, 1},
		} {
			r.cost()
			server := "s"
			if test.code == session.Forbidden {
				server = "t"
			}
			who, err := as(auth.NewKeys(r.count), server, test.headers...)
			if cost := r.cost(); session.CodeOf(err) != test.code || !cmp.Equal(who, session.Identity{}) || cost != [2]int{test.reads, 0} {
				t.Errorf("%s: %v, %v; %d reads and writes", name, who, err, cost)
			}
			if keys := test.code != session.Invalid; session.IsForOperator(err) != keys {
				t.Errorf("%s: the error is for the operator: %v, want %v", name, !keys, keys)
			}
			if err != nil && strings.Contains(err.Error(), good[12:]) {
				t.Errorf("%s: the error shows a key: %v", name, err)
			}
		}
		// The key of the last case is good; only the server is wrong.
		if _, err := as(auth.NewKeys(r.count), "s", "Bearer "+good); err != nil {
			t.Error(err)
		}
	})
}

func TestRefusalsOfBadKeysAreTheSame(t *testing.T) {
	r := newRig(t)
	gone := r.key(0, "s")
	r.revoke(gone)
	texts := map[string]bool{}
	for _, key := range []string{gone, "dm_aaaaaaaa_" + gone[12:], "nonsense", gone[:12] + strings.Repeat("a", 32)} {
		_, err := as(auth.NewKeys(r.count), "s", "Bearer "+key)
		var e *session.Error
		if errors.As(err, &e) {
			texts[e.Message] = true
		}
	}
	if len(texts) != 1 {
		t.Errorf("they tell what is wrong: %v", texts)
	}
}

func TestGoodKeyIsRememberedForAMomentOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(0, "s")
		a := auth.NewKeys(r.count)
		r.cost()
		for _, want := range [][2]int{{1, 1}, {0, 0}, {0, 0}} { // the first call notes the use
			if _, err := as(a, "s", "Bearer "+key); err != nil {
				t.Fatal(err)
			}
			if cost := r.cost(); cost != want {
				t.Errorf("it cost %d reads and writes, want %d", cost, want)
			}
		}
		time.Sleep(auth.Remembered)
		if _, err := as(a, "s", "Bearer "+key); err != nil {
			t.Fatal(err)
		}
		if cost := r.cost(); cost != [2]int{1, 0} {
			t.Errorf("later it cost %d reads and writes", cost)
		}
	})
}

func TestRememberedKeyIsStillComparedWithWhatIsSent(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	a := auth.NewKeys(r.count)
	if _, err := as(a, "s", "Bearer "+key); err != nil {
		t.Fatal(err)
	}
	_, err := as(a, "s", "Bearer "+key[:12]+strings.Repeat("a", 32))
	wantCode(t, err, session.Unauthenticated)
	_, err = as(a, "t", "Bearer "+key)
	wantCode(t, err, session.Forbidden)
}

func TestRevocationBitesWhenTheMemoryEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(0, "s")
		warm, cold := auth.NewKeys(r.count), auth.NewKeys(r.count)
		if _, err := as(warm, "s", "Bearer "+key); err != nil {
			t.Fatal(err)
		}
		r.revoke(key)
		_, err := as(cold, "s", "Bearer "+key)
		wantCode(t, err, session.Unauthenticated)
		time.Sleep(auth.Remembered)
		_, err = as(warm, "s", "Bearer "+key)
		wantCode(t, err, session.Unauthenticated)
		wantCode(t, warm.Confirm(t.Context(), idOf(key), "s"), session.Unauthenticated)
	})
}

func TestWhatIsNotGoodIsNotRemembered(t *testing.T) {
	r := newRig(t)
	a := auth.NewKeys(r.count)
	revoked := r.key(0, "s")
	r.revoke(revoked)
	for _, key := range []string{revoked, "dm_aaaaaaaa_" + revoked[12:]} {
		for range 2 {
			r.cost()
			_, err := as(a, "s", "Bearer "+key)
			wantCode(t, err, session.Unauthenticated)
			if cost := r.cost(); cost != [2]int{1, 0} {
				t.Errorf("it cost %d reads and writes", cost)
			}
		}
	}
}

func TestRememberedKeyEndsInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(auth.Remembered/2, "s")
		a := auth.NewKeys(r.count)
		if _, err := as(a, "s", "Bearer "+key); err != nil {
			t.Fatal(err)
		}
		time.Sleep(auth.Remembered / 2)
		_, err := as(a, "s", "Bearer "+key)
		wantCode(t, err, session.Unauthenticated)
	})
}

func TestUseIsNotedOnceAnHour(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(0, "s")
		writes := 0
		begun := time.Now()
		for range 3*60 + 1 {
			r.cost()
			if _, err := as(auth.NewKeys(r.count), "s", "Bearer "+key); err != nil {
				t.Fatal(err)
			}
			writes += r.cost()[1]
			time.Sleep(time.Minute)
		}
		if used := r.record(key).Used; writes != 4 || !used.Equal(begun.Add(3*time.Hour)) {
			t.Errorf("%d writes in three hours, the last use is %s after the first", writes, used.Sub(begun))
		}
	})
}

func TestTroubleWithTheNoteKeepsNobodyOut(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(0, "s")
		r.faulty.Set("SaveKey", sessiontest.Faults{Lost: 1})
		a := auth.NewKeys(r.count)
		for range 3 {
			if _, err := as(a, "s", "Bearer "+key); err != nil {
				t.Error(err)
			}
		}
		if n := r.count.Counts().Calls["SaveKey"]; n != 1 {
			t.Errorf("%d attempts to note the use", n)
		}
	})
}

// beaten is a store in which a key is revoked between a read and the write.
type beaten struct {
	session.Store
	revoke func()
}

func (b *beaten) Keys() session.Collection[session.Key] { return beatenKeys{b.Store.Keys(), b} }

type beatenKeys struct {
	session.Collection[session.Key]
	by *beaten
}

func (b beatenKeys) Save(ctx context.Context, k session.Key) error {
	if revoke := b.by.revoke; revoke != nil {
		b.by.revoke = nil
		revoke()
	}
	return b.Collection.Save(ctx, k)
}

func TestRevocationDuringAUseIsNotOverwrittenAndNoticed(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	a := auth.NewKeys(&beaten{r.count, func() { r.revoke(key) }})
	if _, err := as(a, "s", "Bearer "+key); err != nil {
		t.Fatal(err)
	}
	_, err := as(a, "s", "Bearer "+key)
	wantCode(t, err, session.Unauthenticated)
	if r.record(key).Revoked.IsZero() {
		t.Error("the key is good again")
	}
}

func TestRevokeGetsThroughAUseThatIsNoted(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	store := &beaten{r.count, func() {
		if _, err := as(auth.NewKeys(r.count), "s", "Bearer "+key); err != nil {
			t.Error(err)
		}
	}}
	k, err := auth.Revoke(t.Context(), store, key)
	if err != nil || k.Revoked.IsZero() || k.Used.IsZero() || r.record(key).Revoked.IsZero() {
		t.Errorf("%+v, %v", k, err)
	}
}

func TestTroubleWithTheStoreIsNotABadKey(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	r.faulty.Set("Key", sessiontest.Faults{Lost: 1})
	a := auth.NewKeys(r.count)
	_, err := as(a, "s", "Bearer "+key)
	wantCode(t, err, session.Unavailable)
	wantCode(t, a.Confirm(t.Context(), idOf(key), "s"), session.Unavailable)
}

func TestConfirmWantsWhatAuthenticateGave(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	a := auth.NewKeys(r.count)
	if err := a.Confirm(t.Context(), idOf(key), "s"); err != nil {
		t.Error(err)
	}
	wantCode(t, a.Confirm(t.Context(), idOf(key), "t"), session.Forbidden)
	for _, credential := range []string{"", "aaaaaaaa", key, "../" + idOf(key)} {
		wantCode(t, a.Confirm(t.Context(), credential, "s"), session.Unauthenticated)
	}
}

func TestInstanceDoesNotRememberWithoutBound(t *testing.T) {
	r := newRig(t)
	a := auth.NewKeys(r.count)
	for range 1100 {
		if _, err := as(a, "s", "Bearer "+r.key(0, "s")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := as(a, "s", "Bearer "+r.key(0, "s")); err != nil {
		t.Error(err)
	}
}

func TestOpenLetsEverybodyInAsTheUserOfTheMachine(t *testing.T) {
	who, err := as(auth.Open{}, "s")
	if want := (session.Identity{Tenant: "local", Principal: "local"}); !cmp.Equal(who, want) || err != nil {
		t.Errorf("%v, %v", who, err)
	}
	if err := (auth.Open{}).Confirm(t.Context(), "", "s"); err != nil {
		t.Error(err)
	}
}

func TestWhatAKeySaysOfItsPrincipalComesWithEveryRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key, _, err := auth.Create(t.Context(), r.count, auth.Grant{
			Tenant: "acme", Principal: "alice", Servers: []string{"one"}, Props: []byte(`{"plan":"pro"}`),
		})
		if err != nil {
			t.Fatal(err)
		}
		who, err := as(auth.NewKeys(r.count), "one", "Bearer "+key)
		if err != nil || string(who.Props) != `{"plan":"pro"}` {
			t.Errorf("%s, %v", who.Props, err)
		}
	})
}
