package api

import (
	"cmp"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// roleUser is the name of storage.RoleUser outside of the store.
const roleUser = "user"

func keyOf(k storage.Key) Key {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		t = t.UTC()
		return &t
	}
	return Key{
		ID: k.ID, Tenant: k.Tenant, Principal: k.Principal, Role: cmp.Or(string(k.Role), roleUser), Servers: k.Servers,
		Created: k.Created.UTC(), LastUsed: at(k.Used), Expires: at(k.Expires), Revoked: at(k.Revoked),
	}
}

func (x *exchange) keys() (any, error) {
	tenant := x.caller.Tenant
	if tenant == "" {
		tenant = x.r.URL.Query().Get("tenant")
	}
	all, err := apikey.List(x.r.Context(), x.h.Store, tenant)
	if err != nil {
		return nil, err
	}
	list := []Key{}
	for _, k := range all {
		if x.caller.manages(k) {
			list = append(list, keyOf(k))
		}
	}
	return map[string]any{"keys": list}, nil
}

// manages reports whether the caller may manage a key. The caller must see the key's tenant,
// and all servers that the key is for.
func (c Caller) manages(k storage.Key) bool {
	return (c.Tenant == "" || c.Tenant == k.Tenant) && !slices.ContainsFunc(k.Servers, func(server string) bool {
		return !apikey.May(c.Servers, server)
	})
}

func (x *exchange) createKey() (any, error) {
	asked := NewKey{Seconds: KeyDays * 24 * 60 * 60}
	if err := x.body(&asked); err != nil {
		return nil, err
	}
	g := apikey.Grant{
		Tenant: cmp.Or(asked.Tenant, x.caller.Tenant, ownTenant), Principal: asked.Principal, Servers: asked.Servers, Props: asked.Props,
		Life: time.Duration(asked.Seconds) * time.Second, Role: storage.Role(asked.Role),
	}
	if asked.Role == roleUser {
		g.Role = storage.RoleUser
	}
	if err := x.caller.mints(g.Role); err != nil {
		return nil, err
	}
	if !x.caller.manages(storage.Key{Tenant: g.Tenant, Servers: g.Servers}) {
		return nil, storage.Errorf(storage.Forbidden, "your own key is for tenant %s and its servers only, and so are the keys that you make", x.caller.Tenant)
	}
	if err := x.h.knows(asked.Servers); err != nil {
		return nil, err
	}
	secret, record, err := apikey.Create(x.r.Context(), x.h.Store, g)
	if err != nil {
		return nil, err
	}
	k := keyOf(record)
	k.Key = secret
	return k, nil
}

func (o Options) knows(servers []string) error {
	if o.Servers == nil {
		return nil
	}
	file := o.Servers()
	names := file.Names()
	for _, r := range file.Rejected() {
		names = append(names, r.Name)
	}
	for _, name := range servers {
		if name != storage.EveryServer && !slices.Contains(names, name) {
			return storage.Errorf(storage.Invalid, "no server %s: %s", name, serversfile.Instead(name, names))
		}
	}
	return nil
}

// managedKey returns the key in the path, by its id.
func (x *exchange) managedKey() (storage.Key, error) {
	k, err := x.h.Store.Keys().Get(x.r.Context(), x.r.PathValue("key"))
	if err != nil && storage.CodeOf(err) != storage.NotFound {
		return k, err
	}
	if err != nil || !x.caller.manages(k) {
		return k, apikey.NoKey()
	}
	return k, nil
}

func (x *exchange) rotateKey() (any, error) {
	var asked Rotate
	if err := x.body(&asked); err != nil {
		return nil, err
	}
	k, err := x.managedKey()
	if err != nil {
		return nil, err
	}
	if err := x.caller.mints(k.Role); err != nil {
		return nil, err
	}
	secret, record, old, err := apikey.Rotate(x.r.Context(), x.h.Store, k.ID, time.Duration(asked.Seconds)*time.Second)
	if err != nil {
		return nil, err
	}
	answer := Rotated{Key: keyOf(record), Old: keyOf(old)}
	answer.Key.Key = secret
	return answer, nil
}

func (x *exchange) revokeKey() (any, error) {
	k, err := x.managedKey()
	if err != nil {
		return nil, err
	}
	k, err = apikey.Revoke(x.r.Context(), x.h.Store, k.ID)
	return keyOf(k), err
}
