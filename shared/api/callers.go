package api

import (
	"crypto/subtle"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Holders returns a Caller of [Options] that takes API keys of role viewer or operator.
func Holders(keys *auth.Keys) func(*http.Request, auth.Right) (Caller, error) {
	return func(r *http.Request, right auth.Right) (Caller, error) {
		k, err := keys.Holder(r, right)
		return Caller{Principal: k.Principal, Tenant: k.Tenant, Servers: k.Servers, Role: k.Role}, err
	}
}

// Owner returns a Caller of [Options] for the user of a machine, who shows the secret of
// its data folder and may do everything.
func Owner(secret string) func(*http.Request, auth.Right) (Caller, error) {
	want := []byte("Bearer " + secret)
	return func(r *http.Request, _ auth.Right) (Caller, error) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			return Caller{}, session.Errorf(session.Unauthenticated, "the caller does not know the secret of the data folder")
		}
		return Machine("the operator of this machine"), nil
	}
}

// Machine returns the caller who may do everything, under a name in words.
func Machine(principal string) Caller {
	return Caller{Principal: principal, Servers: []string{session.EveryServer}, Role: session.RoleOperator}
}
