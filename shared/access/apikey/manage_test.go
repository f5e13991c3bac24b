package apikey_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestKeyIsNotInItsRecord(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "s")
	if !regexp.MustCompile(`^dm_[a-z2-7]{8}_[a-z2-7]{32}$`).MatchString(key) {
		t.Errorf("a key looks like %q", key)
	}
	record, err := storage.KeyKind().Marshal(r.record(key))
	commontest.OK(t, err)
	if secret := key[12:]; strings.Contains(string(record), secret) {
		t.Error("the record holds the secret")
	}
}

func TestGrantThatIsWrongMakesNoKey(t *testing.T) {
	for name, g := range map[string]apikey.Grant{
		"no tenant":                  {Principal: "p", Servers: []string{"s"}},
		"a tenant that is a path":    {Tenant: "a/b", Principal: "p", Servers: []string{"s"}},
		"no principal":               {Tenant: "t", Servers: []string{"s"}},
		"a principal with a control": {Tenant: "t", Principal: "a\x1b[2J", Servers: []string{"s"}},
		"no server":                  {Tenant: "t", Principal: "p"},
		"props that are too long":    {Tenant: "t", Principal: "p", Servers: []string{"s"}, Props: []byte(`{"a":"` + strings.Repeat("a", 5000) + `"}`)},
		"a life that is over":        {Tenant: "t", Principal: "p", Servers: []string{"s"}, Life: -1},
	} {
		r := newRig(t)
		key, _, err := apikey.Create(t.Context(), r.count, g)
		if storage.CodeOf(err) != storage.Invalid || key != "" || r.cost() != [2]int{} {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestListShowsEveryKeyOfATenant(t *testing.T) {
	r := newRig(t)
	for range 2 {
		r.key(0, "s")
	}
	_, _, err := apikey.Create(t.Context(), r.count, apikey.Grant{Tenant: "other", Principal: "p", Servers: []string{"s"}})
	commontest.OK(t, err)
	for tenant, want := range map[string]int{"acme": 2, "": 3} {
		keys, err := apikey.List(t.Context(), r.count, tenant)
		commontest.OK(t, err)
		commontest.EqualIn(t, "keys of "+tenant, want, len(keys))
	}
}

func (r *rig) ofRole(role storage.Role) string {
	r.t.Helper()
	key, _, err := apikey.Create(r.t.Context(), r.count, apikey.Grant{Tenant: "acme", Principal: "alice", Servers: []string{"s"}, Role: role})
	commontest.OK(r.t, err)
	return key
}

func TestRolePermitsWhatItSays(t *testing.T) {
	for role, may := range map[storage.Role][3]bool{ // call, see, act
		storage.RoleUser: {true, false, false}, storage.RoleViewer: {false, true, false}, storage.RoleOperator: {true, true, true},
	} {
		r := newRig(t)
		key, keys := r.ofRole(role), apikey.NewKeys(r.count)
		_, err := as(keys, "s", "Bearer "+key)
		if (err == nil) != may[0] || err != nil && storage.CodeOf(err) != storage.Forbidden {
			t.Errorf("%q calls: %v", role, err)
		}
		commontest.EqualIn(t, string(role)+" calls again", may[0], keys.Confirm(t.Context(), idOf(key), "s") == nil)
		for i, right := range []apikey.Right{apikey.ToSee, apikey.ToAct} {
			q := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			q.Header.Set("Authorization", "Bearer "+key)
			k, err := keys.Holder(q, right)
			if (err == nil) != may[i+1] || err == nil && k.Principal != "alice" || err != nil && storage.CodeOf(err) != storage.Forbidden {
				t.Errorf("%q to %s: %v, %+v", role, right, err, k)
			}
		}
	}
}

func TestKeyOfAnUnknownRoleMayNothing(t *testing.T) {
	r := newRig(t)
	if _, _, err := apikey.Create(t.Context(), r.count, apikey.Grant{Tenant: "t", Principal: "p", Servers: []string{"s"}, Role: "root"}); storage.CodeOf(err) != storage.Invalid {
		t.Errorf("it is made: %v", err)
	}
	key := r.ofRole(storage.RoleOperator)
	k := r.record(key)
	k.Role = "root"
	commontest.OK(t, r.count.Keys().Save(t.Context(), k))
	if _, err := as(apikey.NewKeys(r.count), "s", "Bearer "+key); storage.CodeOf(err) != storage.Forbidden {
		t.Errorf("it calls: %v", err)
	}
}

func TestRotatedKeyEndsAfterItsGraceAndItsSuccessorIsTheSamePrincipals(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		old := r.key(30*24*time.Hour, "a", "b")
		time.Sleep(time.Hour)
		key, record, was, err := apikey.Rotate(t.Context(), r.count, idOf(old), 24*time.Hour)
		commontest.OK(t, err)
		want := r.record(old)
		want.ID, want.Hash, want.Rev, want.Created, want.Expires = record.ID, record.Hash, 1, time.Now(), time.Now().Add(30*24*time.Hour)
		commontest.Same(t, want, record)
		if !was.Expires.Equal(time.Now().Add(24 * time.Hour)) {
			t.Errorf("the old key ends at %s", was.Expires)
		}
		both := func(k string) bool { _, err := as(apikey.NewKeys(r.count), "a", "Bearer "+k); return err == nil }
		if !both(old) || !both(key) {
			t.Error("one of them is not good during the grace")
		}
		time.Sleep(24*time.Hour + time.Second)
		synctest.Wait()
		if both(old) || !both(key) {
			t.Error("after the grace the old key is good, or the new one is not")
		}
		short := r.key(time.Hour, "a")
		if _, _, was, err := apikey.Rotate(t.Context(), r.count, short, 24*time.Hour); err != nil || !was.Expires.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("a grace makes the old key live until %s: %v", was.Expires, err)
		}
	})
}

func TestKeyThatIsGoneCannotBeRotated(t *testing.T) {
	r := newRig(t)
	key := r.key(0, "a")
	r.revoke(key)
	for name, want := range map[string]storage.Code{"aaaaaaaa": storage.NotFound, key: storage.Conflict} {
		_, _, _, err := apikey.Rotate(t.Context(), r.count, name, 0)
		wantCode(t, err, want)
	}
	_, _, _, err := apikey.Rotate(t.Context(), r.count, r.key(0, "a"), -time.Second)
	wantCode(t, err, storage.Invalid)
	_, err = apikey.Revoke(t.Context(), r.count, "dm_aaaaaaaa_b")
	wantCode(t, err, storage.NotFound)
}
