package sessiontest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// aKey returns a key with every field filled.
func aKey(id string) session.Key {
	return session.Key{
		ID: id, Rev: 1, Hash: []byte("\x00\xff hash"), Tenant: "acme", Principal: "alice <é>", Servers: []string{"b", "a"}, Role: session.RoleViewer, Props: []byte(`{"plan":"é"}`),
		Created: past(), Used: now(), Revoked: now(), Expires: future(),
	}
}

func keyPromises() []promise {
	return []promise{
		{"a key nobody has created is NotFound", func(t *testing.T, k *kit) {
			noError(t, "CreateKey", k.CreateKey(t.Context(), aKey("k1")))
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), aTicket("k2")))
			for _, id := range []string{"k2", "k", "K1", ""} {
				_, err := k.Key(t.Context(), id)
				wantCode(t, "Key "+id, err, session.NotFound)
				wantCode(t, "SaveKey "+id, k.SaveKey(t.Context(), session.Key{ID: id, Rev: 1}), session.NotFound)
			}
		}},
		{"a key is kept with every field and Rev 1", func(t *testing.T, k *kit) {
			want := aKey("k1")
			filled(t, want)
			given := want
			given.Rev = 17
			noError(t, "CreateKey", k.CreateKey(t.Context(), given))
			got, err := k.other(t).Key(t.Context(), "k1")
			noError(t, "Key", err)
			same(t, "Key", got, want)
		}},
		{"a key without expiry stays", func(t *testing.T, k *kit) {
			noError(t, "CreateKey", k.CreateKey(t.Context(), session.Key{ID: "k1"}))
			got, err := k.Key(t.Context(), "k1")
			noError(t, "Key", err)
			same(t, "Key", got, session.Key{ID: "k1", Rev: 1})
		}},
		{"of many that create the same id one wins", func(t *testing.T, k *kit) {
			race(t, k, 8, func(s session.Store, _ int) error { return s.CreateKey(t.Context(), aKey("k1")) })
			wantCode(t, "CreateKey again", k.CreateKey(t.Context(), aKey("k1")), session.Conflict)
		}},
		{"a key is saved over the revision that was read, once", func(t *testing.T, k *kit) {
			noError(t, "CreateKey", k.CreateKey(t.Context(), aKey("k1")))
			changed := aKey("k1")
			changed.Servers, changed.Tenant = []string{session.EveryServer}, "umbrella"
			noError(t, "SaveKey", k.SaveKey(t.Context(), changed))
			wantCode(t, "SaveKey again", k.SaveKey(t.Context(), aKey("k1")), session.Conflict)
			got, err := k.other(t).Key(t.Context(), "k1")
			noError(t, "Key", err)
			changed.Rev = 2
			same(t, "Key", got, changed)
		}},
		{"an expired key is not there, and its id is free", func(t *testing.T, k *kit) {
			old := aKey("k1")
			old.Expires = past()
			noError(t, "CreateKey", k.CreateKey(t.Context(), old))
			_, err := k.Key(t.Context(), "k1")
			wantCode(t, "Key", err, session.NotFound)
			wantCode(t, "SaveKey", k.SaveKey(t.Context(), old), session.NotFound)
			same(t, "ListKeys", keyIDs(t, k, "", "", 10), []string(nil))
			noError(t, "CreateKey again", k.CreateKey(t.Context(), aKey("k1")))
			same(t, "ListKeys of what is there now", keyIDs(t, k, "", "", 10), []string{"k1"})
		}},
		{"keys are listed in order, behind one, at most so many", keyPages},
		{"keys are listed by tenant, and sessions without them", func(t *testing.T, k *kit) {
			for i, tenant := range []string{"acme", "umbrella", "acme", ""} {
				key := aKey(fmt.Sprint("k", i))
				key.Tenant = tenant
				noError(t, "CreateKey", k.CreateKey(t.Context(), key))
			}
			noError(t, "Create", k.Create(t.Context(), plain("s1", "acme")))
			full := aKey("k9")
			noError(t, "CreateKey", k.CreateKey(t.Context(), full))
			list, err := k.ListKeys(t.Context(), "", "k8", 10)
			noError(t, "ListKeys", err)
			same(t, "a listed key", list, []session.Key{full})
			same(t, "ListKeys of acme", keyIDs(t, k, "acme", "", 10), []string{"k0", "k2", "k9"})
			same(t, "ListKeys of umbrella", keyIDs(t, k, "umbrella", "k0", 10), []string{"k1"})
			same(t, "ListKeys of nobody", keyIDs(t, k, "nobody", "", 10), []string(nil))
			same(t, "List of acme", listed(t, k, "acme", "", 10), []session.ID{"s1"})
			same(t, "List of all", listed(t, k, "", "", 10), []session.ID{"s1"})
		}},
		{"keys are copied in and out", func(t *testing.T, k *kit) {
			key, want := aKey("k1"), aKey("k1")
			noError(t, "CreateKey", k.CreateKey(t.Context(), key))
			for range 2 {
				key.Hash[0], key.Servers[0] = 'z', "z"
				got, err := k.Key(t.Context(), "k1")
				noError(t, "Key", err)
				same(t, "Hash", got.Hash, want.Hash)
				same(t, "Servers", got.Servers, want.Servers)
				key = got
			}
		}},
	}
}

func keyPages(t *testing.T, k *kit) {
	var all []string
	for i := range 120 {
		all = append(all, fmt.Sprintf("k%03d", i))
	}
	for i := range all { // not in the order of the ids
		noError(t, "CreateKey", k.CreateKey(t.Context(), aKey(all[(i*7)%len(all)])))
	}
	for _, c := range []struct {
		after string
		limit int
		want  []string
	}{
		{"", 1000, all}, {"", 2, all[:2]}, {"k001", 2, all[2:4]}, {"k001x", 110, all[2:112]}, {"k119", 10, nil}, {"", 0, nil},
	} {
		for _, tenant := range []string{"", "acme"} {
			same(t, fmt.Sprintf("ListKeys of %q behind %q", tenant, c.after), keyIDs(t, k, tenant, c.after, c.limit), c.want)
		}
	}
}

func keyIDs(t *testing.T, k *kit, tenant, after string, limit int) []string {
	t.Helper()
	list, err := k.ListKeys(t.Context(), tenant, after, limit)
	noError(t, "ListKeys", err)
	var ids []string
	for _, key := range list {
		ids = append(ids, key.ID)
	}
	return ids
}

// aTicket returns a ticket with every field filled.
func aTicket(hash string) session.EntryTicket {
	return session.EntryTicket{
		Hash: hash, Server: "everything", Identity: session.Identity{Tenant: "acme", Principal: "alice <é>", Credential: "k1", Props: []byte(`{"plan":"é"}`), Scopes: []string{"mcp"}, Scoped: true, ToolRules: []string{"a*"}, Members: map[string][]string{"everything": {"a*"}}}, Expires: future(),
	}
}

func entryTicketPromises() []promise {
	return []promise{
		{"a ticket nobody has put is NotFound", func(t *testing.T, k *kit) {
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), aTicket("aa")))
			noError(t, "CreateKey", k.CreateKey(t.Context(), aKey("bb")))
			for _, hash := range []string{"bb", "a", ""} {
				_, err := k.TakeEntryTicket(t.Context(), hash)
				wantCode(t, "TakeEntryTicket "+hash, err, session.NotFound)
			}
			_, err := k.Key(t.Context(), "bb")
			noError(t, "Key of the same name", err)
		}},
		{"a ticket is taken with every field, once", func(t *testing.T, k *kit) {
			want := aTicket("aa")
			filled(t, want)
			filled(t, want.Identity)
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), want))
			noError(t, "PutEntryTicket of another", k.PutEntryTicket(t.Context(), aTicket("bb")))
			got, err := k.other(t).TakeEntryTicket(t.Context(), "aa")
			noError(t, "TakeEntryTicket", err)
			same(t, "TakeEntryTicket", got, want)
			_, err = k.TakeEntryTicket(t.Context(), "aa")
			wantCode(t, "TakeEntryTicket again", err, session.NotFound)
			_, err = k.TakeEntryTicket(t.Context(), "bb")
			noError(t, "TakeEntryTicket of another", err)
		}},
		{"of many that take a ticket one gets it", func(t *testing.T, k *kit) {
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), aTicket("aa")))
			race(t, k, 8, func(s session.Store, _ int) error {
				_, err := s.TakeEntryTicket(t.Context(), "aa")
				if errors.Is(err, session.NotFound) {
					return session.Conflict
				}
				return err
			})
		}},
		{"an expired ticket is not there", func(t *testing.T, k *kit) {
			old := aTicket("aa")
			old.Expires = past()
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), old))
			_, err := k.TakeEntryTicket(t.Context(), "aa")
			wantCode(t, "TakeEntryTicket", err, session.NotFound)
		}},
	}
}
