package api

import (
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/access/apikey"
	"github.com/dormouse-mcp/dormouse/shared/access/resourceserver"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Holders returns a function for Options.Caller that accepts API keys whose role has the right. If
// users is not nil, the function also accepts the tokens of users. A user acts for their tenant,
// and sees all servers.
func Holders(keys *apikey.Keys, users *resourceserver.Issued) func(*http.Request, apikey.Right) (Caller, error) {
	return func(r *http.Request, right apikey.Right) (Caller, error) {
		if token, sent := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); sent && users != nil && !apikey.IsKey(token) {
			who, role, err := users.Operator(r.Context(), token)
			if err == nil && !apikey.Has(role, right) {
				err = storage.NameRefused(storage.Errorf(storage.Forbidden, "your role at this console is %s; this needs another one", role), who)
			}
			return Caller{Principal: who.Principal, Tenant: who.Tenant, Servers: []string{storage.EveryServer}, Role: role, User: true}, err
		}
		k, err := keys.Holder(r, right)
		return Caller{Principal: k.Principal, Tenant: k.Tenant, Servers: k.Servers, Role: k.Role}, err
	}
}

// Owner returns a function for Options.Caller that accepts the user of a machine. The user sends
// the secret of the data folder, and may do everything.
func Owner(secret string) func(*http.Request, apikey.Right) (Caller, error) {
	want := []byte("Bearer " + secret)
	return func(r *http.Request, _ apikey.Right) (Caller, error) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			return Caller{}, storage.Errorf(storage.Unauthenticated, "the caller does not know the secret of the data folder")
		}
		return Machine("the operator of this machine"), nil
	}
}

// Machine returns a caller who may do everything. The argument principal names the caller in
// messages to clients.
func Machine(principal string) Caller {
	return Caller{Principal: principal, Servers: []string{storage.EveryServer}, Role: storage.RoleOperator}
}
