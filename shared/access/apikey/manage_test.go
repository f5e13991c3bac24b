package apikey_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
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
		"a tenant that leads up":     {Tenant: "..", Principal: "p", Servers: []string{"s"}},
		"a tenant that is too long":  {Tenant: strings.Repeat("t", 65), Principal: "p", Servers: []string{"s"}},
		"no principal":               {Tenant: "t", Servers: []string{"s"}},
		"a principal with a space":   {Tenant: "t", Principal: "a b", Servers: []string{"s"}},
		"a principal with a control": {Tenant: "t", Principal: "a\x1b[2J", Servers: []string{"s"}},
		"a principal too long":       {Tenant: "t", Principal: strings.Repeat("p", 129), Servers: []string{"s"}},
		"no server":                  {Tenant: "t", Principal: "p"},
		"props that are a list":      {Tenant: "t", Principal: "p", Servers: []string{"s"}, Props: []byte(`[1]`)},
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

func TestCreateFailsWithTheStore(t *testing.T) {
	r := newRig(t)
	r.faulty.Set("", storagetest.Faults{Unanswered: 1})
	key, _, err := apikey.Create(t.Context(), r.count, apikey.Grant{Tenant: "t", Principal: "p", Servers: []string{"s"}})
	if storage.CodeOf(err) != storage.Unavailable || key != "" {
		t.Errorf("%v", err)
	}
}

func TestRevokedKeyIsShownForAMonthAndThenForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		long, short := r.key(0, "s"), r.key(24*time.Hour, "s")
		first := r.revoke(idOf(long))
		time.Sleep(time.Minute)
		if again := r.revoke("dm_" + idOf(long)); !again.Revoked.Equal(first.Revoked) {
			t.Error("it was revoked twice")
		}
		if end := r.revoke(short).Expires; !end.Equal(first.Created.Add(24 * time.Hour)) {
			t.Errorf("a revoked key would be kept longer than a good one: until %s", end)
		}
		time.Sleep(29 * 24 * time.Hour)
		commontest.EqualIn(t, "keys are shown after 29 days", 1, len(list(t, r, "")))
		time.Sleep(24 * time.Hour)
		commontest.EqualIn(t, "keys are shown after 30 days", 0, len(list(t, r, "")))
	})
}

func TestRevokeOfNoKeyIsNotFound(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"", "dm_", "aaaaaaaa", "dm_aaaaaaaa_b"} {
		_, err := apikey.Revoke(t.Context(), r.count, name)
		wantCode(t, err, storage.NotFound)
	}
}

func TestListShowsEveryKeyOfATenant(t *testing.T) {
	r := newRig(t)
	want := map[string]bool{}
	for range 250 { // more than a page of the store, and no two are the same
		want[idOf(r.key(0, "s"))] = true
	}
	if _, _, err := apikey.Create(t.Context(), r.count, apikey.Grant{Tenant: "other", Principal: "p", Servers: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, k := range list(t, r, "acme") {
		got[k.ID] = true
	}
	commontest.SameIn(t, "keys", want, got)
	commontest.EqualIn(t, "keys of all tenants", 251, len(list(t, r, "")))
}

func list(t *testing.T, r *rig, tenant string) []storage.Key {
	t.Helper()
	keys, err := apikey.List(t.Context(), r.count, tenant)
	commontest.OK(t, err)
	return keys
}
