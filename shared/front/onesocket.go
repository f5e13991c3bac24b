package front

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// A client connects to a group over WebSocket with ?group=NAME. The session of the group and
// those with its members all name the connection. So the function that writes a member's
// answer to the log also pushes it, as on the member's own path, and gives the tools in it
// their names in the group. Dormouse itself answers requests that concern all members.
//
// A connection keeps the query of its address, and the members that its client could use when
// it connected. At each message Dormouse checks that the client may still use them.

// allServers is the name of the group at /mcp in the address of a connection.
const allServers = "all"

// arrivesAtGroup returns the caller of the group that a new connection is for, and its callers
// at the members.
func (x *turn) arrivesAtGroup(ctx context.Context, r *http.Request) (host.Caller, []host.Caller, error) {
	query := r.URL.Query()
	name := query.Get("group")
	if name == allServers {
		name = ""
	}
	o, ok := newOne(x.exchange(ctx, "/mcp", nil), name, query)
	if !ok {
		return host.Caller{}, nil, refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, "there is no such group; check the name behind ?group=")
	}
	err := o.gather(session.WebSocket, func(names []string) (map[string]session.Identity, error) {
		if !query.Has(queryTicket) {
			return x.opts.Auth.Members(r, o.caller.Server.Name, names)
		}
		who, err := x.redeem(ctx, r, o.caller.Server.Name)
		if err != nil {
			return nil, err
		}
		return x.still(ctx, who, o.caller.Server.Name, names)
	})
	if err != nil {
		return host.Caller{}, nil, err
	}
	c := o.caller
	c.Group = &session.GroupConnection{Plain: o.group.Plain, Search: o.group.Search, Members: o.rules()}
	return c, o.members, nil
}

// still returns the caller's identities at the servers that it may still use, by name.
func (x *turn) still(ctx context.Context, who session.Identity, group string, servers []string) (map[string]session.Identity, error) {
	var had []string
	for _, name := range servers {
		if _, ok := who.Members[name]; ok {
			had = append(had, name)
		}
	}
	may, err := x.opts.Auth.ConfirmMembers(ctx, who.Credential, group, had)
	all := map[string]session.Identity{}
	for _, name := range may {
		who.ToolRules = who.Members[name]
		all[name] = who
	}
	return all, err
}

// exchange returns an exchange whose answer goes to w.
func (x *turn) exchange(ctx context.Context, path string, w http.ResponseWriter) *exchange {
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: path}, Header: http.Header{}}
	return &exchange{opts: &x.opts, w: w, r: r.WithContext(ctx), begun: x.begun, id: x.id, method: x.method, called: x.called}
}

// toGroup does the checks of a message for a group, and serves it.
func (x *turn) toGroup(ctx context.Context, k session.Connection, msgs []wire.Message, batch bool) ([]byte, error) {
	said := &asideResponse{header: http.Header{}}
	e := x.exchange(ctx, k.Server, said)
	name, _, _ := groupOf(k.Server)
	o, ok := newOne(e, name, nil)
	if !ok {
		return nil, refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, "the group is not configured any more")
	}
	o.group.Plain, o.group.Search = k.Group.Plain, k.Group.Search
	err := o.gather(session.WebSocket, func(names []string) (map[string]session.Identity, error) {
		return x.still(ctx, session.Identity{
			Tenant: k.Tenant, Principal: k.Principal, Credential: k.Credential, Scopes: k.Scopes, Scoped: k.Scoped, Members: k.Group.Members,
		}, k.Server, names)
	})
	if err := x.confirmed(ctx, err); err != nil {
		return nil, err
	}
	release, err := x.lets(ctx, o.caller, msgs)
	if err != nil {
		return nil, err
	}
	defer release()
	connected := func(c *host.Caller) { c.Conn, c.EventIDs, c.Group = k.ID, k.EventIDs, k.Group }
	connected(&o.caller)
	for i := range o.members {
		connected(&o.members[i])
	}
	o.session, o.take, o.most = k.Session, oneSocket{o}.accepts, session.MaxPost-pageSpare
	e.one, e.caller, e.session = o, o.caller, k.Session
	if err = o.serveAside(msgs, batch); err == nil && x.method == wire.MethodInitialize {
		x.opts.Host.Tell(ctx, o.caller, k.Session)
	}
	x.called, x.server, x.err = e.called, e.caller.Server.Name, e.err
	var forbidden *problem
	switch {
	case batch && errors.As(err, &forbidden) && x.id != nil:
		x.err = err
		return joined(refusedAll(msgs, forbidden.rpc), batch), nil
	case session.CodeOf(err) == session.Busy && x.id != nil:
		x.err = err
		return joined(busyAll(msgs, err, false), batch), nil
	case err != nil || said.body.Len() == 0:
		return nil, err
	}
	return host.Fit(said.body.Bytes()), nil
}

// oneSocket serves messages to a client of a group over WebSocket.
type oneSocket struct{ *one }

// accepts serves messages for one member. It answers only what the host answers in place.
func (o oneSocket) accepts(msgs []wire.Message, batch bool) error {
	x, member := o.x, o.x.caller.Server.Name
	if err := x.opts.permit(x.caller, o.caller.Server.Name, msgs); err != nil {
		return err
	}
	id := host.MemberID(o.session, member)
	call, err := x.opts.Host.Accept(x.ctx(), x.caller, id, msgs, batch)
	if errors.Is(err, session.NotFound) {
		if err = o.join(x.caller); err == nil {
			call, err = x.opts.Host.Accept(x.ctx(), x.caller, id, msgs, batch)
		}
	}
	if err != nil || call == nil {
		return err
	}
	x.called.begins(call)
	events, err := call.Next(x.ctx(), x.begun)
	switch {
	case err != nil:
		return err
	case !call.Stored() && len(events) > 0:
		x.saw(events)
		x.json(http.StatusOK, events[0].Raw)
	case x.caller.EventIDs:
		_, err = x.w.Write(host.EventNotice(o.session, member, session.EventID{Stream: call.Cursor().Stream}, x.id))
	}
	return err
}
