package apikey_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// rig is a store with keys that counts its calls and can fail.
type rig struct {
	t      *testing.T
	count  *storagetest.Counting
	faulty *storagetest.Faulty
}

func newRig(t *testing.T) *rig {
	faulty := storagetest.NewFaulty(storagetest.NewMemory(), 1, storagetest.Faults{})
	return &rig{t, storagetest.NewCounting(faulty), faulty}
}

func inBubble(t *testing.T, test func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t)) })
}

func (r *rig) key(life time.Duration, servers ...string) string {
	r.t.Helper()
	key, _, err := apikey.Create(r.t.Context(), r.count, apikey.Grant{Tenant: "acme", Principal: "alice", Servers: servers, Life: life})
	commontest.OK(r.t, err)
	return key
}

func (r *rig) revoke(name string) storage.Key {
	r.t.Helper()
	k, err := apikey.Revoke(r.t.Context(), r.count, name)
	commontest.OK(r.t, err)
	return k
}

func (r *rig) record(key string) storage.Key {
	r.t.Helper()
	k, err := r.count.Keys().Get(r.t.Context(), idOf(key))
	commontest.OK(r.t, err)
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
func as(a apikey.Authenticator, server string, values ...string) (storage.Identity, error) {
	q := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/s/mcp", nil)
	for _, v := range values {
		q.Header.Add("Authorization", v)
	}
	may, err := a.Members(q, "", []string{server})
	return may[server], err
}

func served(t *testing.T, a apikey.Authenticator, server, key string) {
	t.Helper()
	_, err := as(a, server, "Bearer "+key)
	commontest.OK(t, err)
}

func refused(t *testing.T, code storage.Code, a apikey.Authenticator, server, key string) {
	t.Helper()
	_, err := as(a, server, "Bearer "+key)
	wantCode(t, err, code)
}

func wantCode(t *testing.T, err error, code storage.Code) {
	t.Helper()
	commontest.EqualIn(t, fmt.Sprintf("the code of %v", err), code, storage.CodeOf(err))
}

func TestKeySaysWhoseItIs(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s", "t")
	want := storage.Identity{Tenant: "acme", Principal: "alice", Credential: idOf(key)}
	for server, header := range map[string]string{"s": "Bearer " + key, "t": "BEARER  " + key + " "} {
		got, err := as(apikey.NewKeys(r.count), server, header)
		commontest.OK(t, err)
		commontest.Same(t, want, got)
	}
	served(t, apikey.NewKeys(r.count), "any", r.key(0, storage.EveryServer))
}

func TestRequestsAreRefusedWithoutAnEffect(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		good, gone, old := r.key(0, "s"), r.key(0, "s"), r.key(time.Hour, "s")
		r.revoke(idOf(gone))
		time.Sleep(time.Hour)
		other := good[:len(good)-1] + map[bool]string{true: "b", false: "a"}[good[len(good)-1] == 'a']
		texts := map[string]bool{} // of refusals of keys: they do not tell what is wrong
		for name, test := range map[string]struct {
			headers []string
			code    storage.Code
			reads   int
		}{
			"nothing":           {nil, storage.Unauthenticated, 0},
			"another scheme":    {[]string{"Basic " + good}, storage.Unauthenticated, 0},
			"two headers":       {[]string{"Bearer " + good, "Bearer " + good}, storage.Invalid, 0},
			"only the id":       {[]string{"Bearer dm_" + idOf(good)}, storage.Unauthenticated, 0},
			"longer":            {[]string{"Bearer " + good + "a"}, storage.Unauthenticated, 0},
			"a ticket":          {[]string{"Bearer dt_" + good[12:]}, storage.Unauthenticated, 0},
			"an id not known":   {[]string{"Bearer dm_aaaaaaaa_" + good[12:]}, storage.Unauthenticated, 1},
			"another secret":    {[]string{"Bearer " + other}, storage.Unauthenticated, 1},
			"a revoked key":     {[]string{"Bearer " + gone}, storage.Unauthenticated, 1},
			"an expired key":    {[]string{"Bearer " + old}, storage.Unauthenticated, 1},
			"for other servers": {[]string{"Bearer " + good}, storage.Forbidden, 1},
		} {
			r.cost()
			server := "s"
			if test.code == storage.Forbidden {
				server = "t"
			}
			who, err := as(apikey.NewKeys(r.count), server, test.headers...)
			if cost := r.cost(); storage.CodeOf(err) != test.code || !cmp.Equal(who, storage.Identity{}) || cost != [2]int{test.reads, 0} {
				t.Errorf("%s: %v, %v; %d reads and writes", name, who, err, cost)
			}
			commontest.EqualIn(t, name+": the error is for the operator", test.code != storage.Invalid, storage.IsForOperator(err))
			if err != nil && strings.Contains(err.Error(), good[12:]) {
				t.Errorf("%s: the error shows a key: %v", name, err)
			}
			if test.reads == 1 && test.code == storage.Unauthenticated {
				texts[err.Error()] = true
			}
		}
		commontest.EqualIn(t, fmt.Sprint(texts), 1, len(texts))
	})
}

func TestGoodKeyIsRememberedForAMomentOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(0, "s")
		a := apikey.NewKeys(r.count)
		r.cost()
		for _, want := range [][2]int{{1, 1}, {0, 0}, {0, 0}} { // the first call notes the use
			served(t, a, "s", key)
			commontest.EqualIn(t, "reads and writes", want, r.cost())
		}
		time.Sleep(apikey.Remembered)
		served(t, a, "s", key)
		commontest.EqualIn(t, "reads and writes later", [2]int{1, 0}, r.cost())
	})
}

func TestRememberedKeyIsStillComparedWithWhatIsSentAndEndsInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(apikey.Remembered/2, "s")
		a := apikey.NewKeys(r.count)
		served(t, a, "s", key)
		refused(t, storage.Unauthenticated, a, "s", key[:12]+strings.Repeat("a", 32))
		refused(t, storage.Forbidden, a, "t", key)
		time.Sleep(apikey.Remembered / 2)
		refused(t, storage.Unauthenticated, a, "s", key)
	})
}

func TestRevocationBitesWhenTheMemoryEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(0, "s")
		warm, cold := apikey.NewKeys(r.count), apikey.NewKeys(r.count)
		served(t, warm, "s", key)
		r.revoke(key)
		refused(t, storage.Unauthenticated, cold, "s", key)
		time.Sleep(apikey.Remembered / 2)
		served(t, warm, "s", key) // a use does not extend the memory
		time.Sleep(apikey.Remembered / 2)
		refused(t, storage.Unauthenticated, warm, "s", key)
		wantCode(t, warm.Confirm(t.Context(), idOf(key), "s"), storage.Unauthenticated)
	})
}

func TestUseIsNotedOnceAnHour(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		key := r.key(0, "s")
		writes := 0
		begun := time.Now()
		for range 3*60 + 1 {
			r.cost()
			served(t, apikey.NewKeys(r.count), "s", key)
			writes += r.cost()[1]
			time.Sleep(time.Minute)
		}
		if used := r.record(key).Used; writes != 4 || !used.Equal(begun.Add(3*time.Hour)) {
			t.Errorf("%d writes in three hours, the last use is %s after the first", writes, used.Sub(begun))
		}
	})
}

func TestTroubleWithTheNoteKeepsNobodyOut(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	r.faulty.Set("SaveKey", storagetest.Faults{Lost: 1})
	a := apikey.NewKeys(r.count)
	for range 3 {
		served(t, a, "s", key)
	}
	commontest.EqualIn(t, "attempts to note the use", 1, r.count.Counts().Calls["SaveKey"])
}

// beaten is a store in which a key is revoked between a read and the write.
type beaten struct {
	storage.Store
	revoke func()
}

func (b *beaten) Keys() storage.Collection[storage.Key] { return beatenKeys{b.Store.Keys(), b} }

type beatenKeys struct {
	storage.Collection[storage.Key]
	by *beaten
}

func (b beatenKeys) Save(ctx context.Context, k storage.Key) error {
	if revoke := b.by.revoke; revoke != nil {
		b.by.revoke = nil
		revoke()
	}
	return b.Collection.Save(ctx, k)
}

func TestRevocationDuringAUseIsNotOverwrittenAndNoticed(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	a := apikey.NewKeys(&beaten{r.count, func() { r.revoke(key) }})
	served(t, a, "s", key)
	refused(t, storage.Unauthenticated, a, "s", key)
	commontest.EqualIn(t, "the key is good again", false, r.record(key).Revoked.IsZero())
}

func TestRevokeGetsThroughAUseThatIsNoted(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	store := &beaten{r.count, func() {
		served(t, apikey.NewKeys(r.count), "s", key)
	}}
	k, err := apikey.Revoke(t.Context(), store, key)
	if err != nil || k.Revoked.IsZero() || k.Used.IsZero() || r.record(key).Revoked.IsZero() {
		t.Errorf("%+v, %v", k, err)
	}
}

func TestTroubleWithTheStoreIsNotABadKey(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	r.faulty.Set("Key", storagetest.Faults{Lost: 1})
	a := apikey.NewKeys(r.count)
	refused(t, storage.Unavailable, a, "s", key)
	wantCode(t, a.Confirm(t.Context(), idOf(key), "s"), storage.Unavailable)
}

func TestConfirmWantsWhatMembersGave(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	a := apikey.NewKeys(r.count)
	commontest.Check(t, a.Confirm(t.Context(), idOf(key), "s"))
	wantCode(t, a.Confirm(t.Context(), idOf(key), "t"), storage.Forbidden)
	for _, credential := range []string{"", "aaaaaaaa", key, "../" + idOf(key)} {
		wantCode(t, a.Confirm(t.Context(), credential, "s"), storage.Unauthenticated)
	}
}

func TestWhatAKeySaysOfItsPrincipalComesWithEveryRequest(t *testing.T) {
	r := newRig(t)
	key, _, err := apikey.Create(t.Context(), r.count, apikey.Grant{
		Tenant: "acme", Principal: "alice", Servers: []string{"one"}, Props: []byte(`{"plan":"pro"}`),
	})
	commontest.OK(t, err)
	who, err := as(apikey.NewKeys(r.count), "one", "Bearer "+key)
	commontest.OK(t, err)
	commontest.Equal(t, `{"plan":"pro"}`, string(who.Props))
}
