package apikey

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Right is a permission that a request needs.
type Right string

// The rights of roles; see [Has].
const (
	ToCall Right = "call" // call a server
	ToSee  Right = "see"  // see servers, sessions, processes, keys and costs
	ToAct  Right = "act"  // see output of processes, stop servers, end sessions, manage keys
)

// Has reports whether a role has a right.
func Has(role storage.Role, r Right) bool {
	switch role {
	case storage.RoleUser:
		return r == ToCall
	case storage.RoleViewer, storage.RoleAuditor:
		return r == ToSee
	default:
		return role == storage.RoleOperator
	}
}

// allow returns nil if a key has a right. For [ToCall], the key must also be for the server. The error
// is Forbidden, with the reason.
func allow(k storage.Key, right Right, server string) error {
	refuse := func(format string, args ...any) error {
		return storage.Errorf(storage.Forbidden, format, args...).ForOperator()
	}
	switch {
	case Has(k.Role, right) && (right != ToCall || May(k.Servers, server)):
		return nil
	case Has(k.Role, right):
		return refuse("this API key is not for %.64s; it is for %s", server, named(k.Servers))
	case right == ToCall:
		return refuse("this API key is for looking only; use one of role user or operator to call servers")
	case right == ToSee:
		return refuse("this API key may only call servers; use one of role viewer, auditor or operator: dormouse keys create NAME --role viewer")
	default:
		return refuse("this needs an API key of role operator: dormouse keys create NAME --role operator")
	}
}

// named lists servers in a sentence. If there are many, it names the first ones and
// counts the others.
func named(servers []string) string {
	const most = 20
	if n := len(servers) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(servers[:most], ", "), n)
	}
	return strings.Join(servers, ", ")
}

// May reports whether a key for these servers is good for a server.
func May(servers []string, server string) bool {
	return slices.Contains(servers, server) || slices.Contains(servers, storage.EveryServer)
}

// Holder returns the key that a request has, after checking that it is good and has a right.
// Holder does not check the key's servers. Costs and errors are as for [Keys.Members].
func (a *Keys) Holder(r *http.Request, right Right) (storage.Key, error) {
	key, err := bearer(r.Header.Values("Authorization"))
	if err != nil {
		return storage.Key{}, err
	}
	return a.whole(r.Context(), key, right, "")
}
