package storagetest

import (
	"errors"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// aKey returns a key with every field filled.
func aKey(id string) storage.Key {
	return storage.Key{
		ID: id, Rev: 1, Hash: []byte("\x00\xff hash"), Tenant: "acme", Principal: "alice <é>", Servers: []string{"b", "a"}, Role: storage.RoleViewer, Props: []byte(`{"plan":"é"}`),
		Created: past(), Used: now(), Revoked: now(), Expires: future(),
	}
}

func keyPromises() []promise {
	return append(rows[storage.Key]{
		full:   aKey,
		kind:   storage.KeyKind(),
		change: func(key *storage.Key) { key.Servers = []string{storage.EveryServer} },
		spoil:  func(key *storage.Key) { key.Hash[0], key.Servers[0] = 'z', "z" },
		beside: func(t *testing.T, k *kit, id string) {
			noError(t, "CreateGrant", k.Grants().Create(t.Context(), aGrant(id)))
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), aTicket(id)))
			noError(t, "Create", k.Create(t.Context(), plain(storage.ID(id), "acme")))
		},
		of: storage.Store.Keys,
	}.promises(), promise{"a key without expiry stays", func(t *testing.T, k *kit) {
		noError(t, "CreateKey", k.Keys().Create(t.Context(), storage.Key{ID: "k1"}))
		got, err := k.Keys().Get(t.Context(), "k1")
		noError(t, "Key", err)
		same(t, "Key", got, storage.Key{ID: "k1", Rev: 1})
	}})
}

// aTicket returns a connect ticket with every field filled.
func aTicket(hash string) storage.EntryTicket {
	return storage.EntryTicket{
		Hash: hash, Server: "everything", Identity: storage.Identity{Tenant: "acme", Principal: "alice <é>", Credential: "k1", Props: []byte(`{"plan":"é"}`), Scopes: []string{"mcp"}, Scoped: true, ToolRules: []string{"a*"}, Members: map[string][]string{"everything": {"a*"}}}, Expires: future(),
	}
}

func entryTicketPromises() []promise {
	return []promise{
		{"a ticket nobody has put is NotFound", func(t *testing.T, k *kit) {
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), aTicket("aa")))
			noError(t, "CreateKey", k.Keys().Create(t.Context(), aKey("bb")))
			for _, hash := range []string{"bb", "a", ""} {
				_, err := k.TakeEntryTicket(t.Context(), hash)
				wantCode(t, "TakeEntryTicket "+hash, err, storage.NotFound)
			}
			_, err := k.Keys().Get(t.Context(), "bb")
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
			wantCode(t, "TakeEntryTicket again", err, storage.NotFound)
			_, err = k.TakeEntryTicket(t.Context(), "bb")
			noError(t, "TakeEntryTicket of another", err)
		}},
		{"of many that take a ticket one gets it", func(t *testing.T, k *kit) {
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), aTicket("aa")))
			race(t, k, 8, func(s storage.Store, _ int) error {
				_, err := s.TakeEntryTicket(t.Context(), "aa")
				if errors.Is(err, storage.NotFound) {
					return storage.Conflict
				}
				return err
			})
		}},
		{"an expired ticket is not there", func(t *testing.T, k *kit) {
			old := aTicket("aa")
			old.Expires = past()
			noError(t, "PutEntryTicket", k.PutEntryTicket(t.Context(), old))
			_, err := k.TakeEntryTicket(t.Context(), "aa")
			wantCode(t, "TakeEntryTicket", err, storage.NotFound)
		}},
	}
}
