package auth_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/access/auth"
	"github.com/dormouse-mcp/dormouse/shared/core/session"
)

// ofRole makes a key of a role for server s.
func (r *rig) ofRole(role session.Role) string {
	r.t.Helper()
	key, _, err := auth.Create(r.t.Context(), r.count, auth.Grant{Tenant: "acme", Principal: "alice", Servers: []string{"s"}, Role: role})
	if err != nil {
		r.t.Fatal(err)
	}
	return key
}

func TestRolePermitsWhatItSays(t *testing.T) {
	for role, may := range map[session.Role][3]bool{ // call, see, act
		session.RoleUser: {true, false, false}, session.RoleViewer: {false, true, false}, session.RoleOperator: {true, true, true},
	} {
		r := newRig(t)
		key, keys := r.ofRole(role), auth.NewKeys(r.count)
		_, err := as(keys, "s", "Bearer "+key)
		if (err == nil) != may[0] || err != nil && session.CodeOf(err) != session.Forbidden {
			t.Errorf("%q calls: %v", role, err)
		}
		if err := keys.Confirm(t.Context(), idOf(key), "s"); (err == nil) != may[0] {
			t.Errorf("%q calls again: %v", role, err)
		}
		for i, right := range []auth.Right{auth.ToSee, auth.ToAct} {
			q := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			q.Header.Set("Authorization", "Bearer "+key)
			k, err := keys.Holder(q, right)
			if (err == nil) != may[i+1] || err == nil && k.Principal != "alice" || err != nil && session.CodeOf(err) != session.Forbidden {
				t.Errorf("%q to %s: %v, %+v", role, right, err, k)
			}
		}
	}
}

func TestKeyOfAnUnknownRoleMayNothing(t *testing.T) {
	r := newRig(t)
	if _, _, err := auth.Create(t.Context(), r.count, auth.Grant{Tenant: "t", Principal: "p", Servers: []string{"s"}, Role: "root"}); session.CodeOf(err) != session.Invalid {
		t.Errorf("it is made: %v", err)
	}
	key := r.ofRole(session.RoleOperator)
	k := r.record(key)
	k.Role = "root"
	if err := r.count.Keys().Save(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if _, err := as(auth.NewKeys(r.count), "s", "Bearer "+key); session.CodeOf(err) != session.Forbidden {
		t.Errorf("it calls: %v", err)
	}
}

func TestRotatedKeyEndsAfterItsGraceAndItsSuccessorIsTheSamePrincipals(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		old := r.key(30*24*time.Hour, "a", "b")
		time.Sleep(time.Hour)
		key, record, was, err := auth.Rotate(t.Context(), r.count, idOf(old), 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		want := r.record(old)
		want.ID, want.Hash, want.Rev, want.Created, want.Expires = record.ID, record.Hash, 1, time.Now(), time.Now().Add(30*24*time.Hour)
		if d := cmp.Diff(want, record); d != "" {
			t.Error(d)
		}
		if !was.Expires.Equal(time.Now().Add(24 * time.Hour)) {
			t.Errorf("the old key ends at %s", was.Expires)
		}
		both := func(k string) bool { _, err := as(auth.NewKeys(r.count), "a", "Bearer "+k); return err == nil }
		if !both(old) || !both(key) {
			t.Error("one of them is not good during the grace")
		}
		time.Sleep(24*time.Hour + time.Second)
		synctest.Wait()
		if both(old) || !both(key) {
			t.Error("after the grace the old key is good, or the new one is not")
		}
	})
}

func TestRotateDoesNotMakeAKeyLiveLonger(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		old := r.key(time.Hour, "a")
		ends := r.record(old).Expires
		if _, _, was, err := auth.Rotate(t.Context(), r.count, old, 24*time.Hour); err != nil || !was.Expires.Equal(ends) {
			t.Errorf("the old key ends at %s, want %s: %v", was.Expires, ends, err)
		}
	})
}

func TestKeyThatIsGoneCannotBeRotated(t *testing.T) {
	r := newRig(t)
	if _, _, _, err := auth.Rotate(t.Context(), r.count, "aaaaaaaa", 0); session.CodeOf(err) != session.NotFound {
		t.Errorf("no such key: %v", err)
	}
	key := r.key(0, "a")
	r.revoke(key)
	if _, _, _, err := auth.Rotate(t.Context(), r.count, key, 0); session.CodeOf(err) != session.Conflict {
		t.Errorf("a revoked key: %v", err)
	}
	if _, _, _, err := auth.Rotate(t.Context(), r.count, r.key(0, "a"), -time.Second); session.CodeOf(err) != session.Invalid {
		t.Errorf("a grace that is over: %v", err)
	}
}
