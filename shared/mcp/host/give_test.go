package host_test

import (
	"errors"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/mcp/host"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

// A session that is given away is found by its new principal only, with those of a group.
func TestAGivenSessionIsOfItsNewPrincipal(t *testing.T) {
	store := sessiontest.NewMemory()
	h := host.New(store, nobody{}, host.Limits{})
	expires := time.Now().Add(time.Hour)
	const id = session.ID("group")
	for _, s := range []session.Session{
		{ID: id, Server: "g", Members: []string{"a", "gone"}},
		{ID: host.MemberID(id, "a"), Server: "a", Group: id, Props: []byte("of ada")},
		{ID: "modern", Server: "a", Transport: session.Modern},
		{ID: "ended", Server: "a", State: session.Ended},
	} {
		s.Tenant, s.Principal, s.Expires = "t", "ada", expires
		if s.State == "" {
			s.State = session.Ready
		}
		if s.Transport == "" {
			s.Transport = session.HTTP
		}
		if err := store.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	given, err := h.Give(t.Context(), id, "bob")
	if err != nil || len(given) != 2 || given[1].Server != "a" {
		t.Fatal(given, err)
	}
	for who, want := range map[string]error{"bob": nil, "ada": session.NotFound} {
		for of, server := range map[session.ID]string{id: "g", host.MemberID(id, "a"): "a"} {
			c := host.Caller{Server: host.Server{Name: server}, Tenant: "t", Principal: who, Transport: session.HTTP}
			s, _, err := h.Load(t.Context(), c, of)
			if !errors.Is(err, want) || err == nil && s.Props != nil {
				t.Errorf("%s of %s: %v", of, who, err)
			}
		}
	}
	for _, test := range []struct {
		id   session.ID
		to   string
		want error
	}{{"modern", "bob", session.Invalid}, {"ended", "bob", session.NotFound}, {"none", "bob", session.NotFound}, {id, "", session.Invalid}, {id, "a\nb", session.Invalid}} {
		if _, err := h.Give(t.Context(), test.id, test.to); !errors.Is(err, test.want) {
			t.Errorf("%s to %q: %v", test.id, test.to, err)
		}
	}
}
