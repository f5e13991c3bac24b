package api

import (
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/operate/bodies"
)

const noBodies missing = "arguments and results of calls are read at the endpoint of dormouse run, or at the console of a stack"

// bodies answers with a line for each call whose bodies are kept for the caller's role, the
// newest first.
func (x *exchange) bodies() (any, error) {
	if x.caller.Role != storage.RoleAuditor && x.caller.Role != storage.RoleOperator {
		return nil, storage.Errorf(storage.Forbidden, "arguments and results of calls are kept for keys of another role: dormouse keys create NAME --role auditor")
	}
	since, err := x.since()
	if err != nil {
		return nil, err
	}
	query := x.r.URL.Query()
	q := bodies.Query{
		Role: x.caller.Role, Tenant: x.caller.Tenant, Server: query.Get("server"), Principal: query.Get("principal"), Tool: query.Get("tool"),
		Servers: x.caller.servers(), Since: since,
	}
	if q.Limit, err = limitOf(query.Get("limit")); err != nil {
		return nil, err
	}
	all, err := x.h.Bodies(x.r.Context(), q)
	if err != nil {
		return nil, err
	}
	write := x.lines()
	for _, b := range all {
		if write(b) != nil {
			return nil, nil //nolint:nilerr // the caller is gone
		}
	}
	x.noLines()
	return nil, nil
}

// mints returns nil if the caller may make keys of a role. Only the owner of the machine or
// stack makes keys of auditors, who may read what operators may not.
func (c Caller) mints(role storage.Role) error {
	if role != storage.RoleAuditor || c.owns() {
		return nil
	}
	return storage.Errorf(storage.Forbidden, "keys of role %s are made by an operator for all servers of the tenant %s, or on the machine itself", role, ownTenant)
}
