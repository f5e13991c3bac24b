package sessions_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestAGivenSessionIsOfItsNewPrincipal(t *testing.T) {
	store := storagetest.NewMemory()
	h := sessions.New(store, nobody{}, sessions.Limits{})
	expires := time.Now().Add(time.Hour)
	const id = storage.ID("group")
	for _, s := range []storage.Session{
		{ID: id, Server: "g", Members: []string{"a", "gone"}},
		{ID: sessions.MemberID(id, "a"), Server: "a", Group: id, Props: []byte("of ada")},
		{ID: "modern", Server: "a", Transport: storage.Modern},
		{ID: "ended", Server: "a", State: storage.Ended},
	} {
		s.Tenant, s.Principal, s.Expires = "t", "ada", expires
		if s.State == "" {
			s.State = storage.Ready
		}
		if s.Transport == "" {
			s.Transport = storage.HTTP
		}
		commontest.OK(t, store.Create(t.Context(), s))
	}
	given, err := h.Give(t.Context(), id, "bob")
	if err != nil || len(given) != 2 || given[1].Server != "a" {
		t.Fatal(given, err)
	}
	for who, want := range map[string]error{"bob": nil, "ada": storage.NotFound} {
		for of, server := range map[storage.ID]string{id: "g", sessions.MemberID(id, "a"): "a"} {
			c := sessions.Caller{Server: sessions.Server{Name: server}, Tenant: "t", Principal: who, Transport: storage.HTTP}
			s, _, err := h.Load(t.Context(), c, of)
			if !errors.Is(err, want) || err == nil && s.Props != nil {
				t.Errorf("%s of %s: %v", of, who, err)
			}
		}
	}
	for _, test := range []struct {
		id   storage.ID
		to   string
		want error
	}{{"modern", "bob", storage.Invalid}, {"ended", "bob", storage.NotFound}, {"none", "bob", storage.NotFound}, {id, "", storage.Invalid}, {id, "a\nb", storage.Invalid}} {
		if _, err := h.Give(t.Context(), test.id, test.to); !errors.Is(err, test.want) {
			t.Errorf("%s to %q: %v", test.id, test.to, err)
		}
	}
}
