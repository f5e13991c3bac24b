package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Subprotocol is the name of MCP in Sec-WebSocket-Protocol.
const Subprotocol = "mcp"

// Socket is MCP over WebSocket, behind an API that holds the connections. The API calls Connect, Message
// and Disconnect, each in one invocation. Whichever invocation writes a later message of the server to
// the log also pushes it. Between two invocations a Socket remembers only records of connections, which
// never change. A Socket is safe for concurrent use.
//
// # For authors of clients
//
// Connect to the API's URL with ?server=NAME, and with the subprotocol mcp or none. For
// several servers at once connect with ?group=NAME. The group of all servers is ?group=all;
// &names=plain and &tools=search are as at /mcp. Send an Authorization header. If you cannot,
// as in a page, post to /<server>/ticket of the HTTP endpoint with that header, and for a
// group to /ticket or /g/<group>/ticket. Then connect within a minute with &ticket=TICKET,
// which is valid for one connection. If the caller loses the right to the server, the
// connection ends.
//
// A message of the connection is one JSON-RPC message of at most 128 KiB, or a batch in
// version 2025-03-26. Begin with initialize. In the place of a larger response you get an
// error that says so.
//
// A connection ends after two hours at the latest, or after ten minutes without a message.
// A ping is answered and wakes nothing. The session outlives the connection. To come back
// to it, and to the messages that you missed, add event-ids=1 to the first URL. Then a
// notification follows each message from the server. It also comes when a request was
// accepted:
//
//	{"jsonrpc":"2.0","method":"notifications/dormouse/event",
//	 "params":{"sessionId":"…","eventId":"…"}}        and "requestId" for a request
//
// Cut an eventId at the first "/": the rest of it is the stream. Each request has a stream, and the
// stream "" has everything else. Keep the last eventId of every stream that matters. Connect again with
// ?server=NAME&session=SESSIONID&last-event-id=ID and event-ids=1; repeat last-event-id for each stream.
// This closes the other connections of the session. The messages after these ids come over the new one.
// Without last-event-id, no connection is closed and no message is repeated. You get only the messages
// that could not be sent because their connection was known to be gone. For a session that has ended, or
// is another caller's, the status is 404.
type Socket struct {
	opts   Options
	push   func(ctx context.Context, id storage.ID) error
	recall connections
}

// SocketOptions are the options of a Socket, which uses the fields of [Options] that are not
// about HTTP.
type SocketOptions struct {
	Options
	// Push arranges a call of [Socket.Push], soon, but after Connect has returned.
	// Before that nothing can be sent to the connection.
	Push func(ctx context.Context, id storage.ID) error
}

// NewSocket returns a Socket. Its Host must know the connections of clients
// ([sessions.Parts]).
func NewSocket(o SocketOptions) *Socket {
	return &Socket{opts: o.withDefaults(), push: o.Push}
}

// Connect handles a new connection and the request that asks for it. A status other than 200
// refuses the connection, and body has the reason. The result protocol is the subprotocol to
// answer with, "" for none.
func (k *Socket) Connect(ctx context.Context, conn string, r *http.Request) (status int, protocol string, body []byte) {
	x := k.turn("connect", conn)
	defer func() { x.finish(ctx, recover()) }()
	protocol, err := x.connect(ctx, r)
	if err == nil {
		return http.StatusOK, protocol, nil
	}
	status, body = x.refuse(err)
	return status, "", body
}

// Message handles a client's message from a connection. It returns when the message has
// been accepted or refused. If reply is not nil, send it back over the same connection.
func (k *Socket) Message(ctx context.Context, conn string, data []byte) (reply []byte) {
	x := k.turn("message", conn)
	x.in = len(data)
	defer func() {
		x.out = len(reply)
		if fault := recover(); x.finish(ctx, fault) {
			reply = wire.ErrorResponse(x.id, problemOf(x.err).rpc)
		}
	}()
	reply, err := x.message(ctx, data)
	if err != nil {
		_, reply = x.refuse(err)
	}
	return reply
}

// Disconnect forgets a connection that has gone. Calling it is optional.
func (k *Socket) Disconnect(ctx context.Context, conn string) {
	x := k.turn("disconnect", conn)
	defer func() { x.finish(ctx, recover()) }()
	k.recall.forget(conn)
	x.err = k.opts.Host.Disconnect(ctx, conn)
}

// Push sends a session its undelivered events. After an error, call it again.
func (k *Socket) Push(ctx context.Context, id storage.ID) error {
	x := k.turn("push", "")
	defer func() { x.finish(ctx, recover()) }()
	x.session = id
	x.err = k.opts.Host.Push(ctx, id)
	return x.err
}

// turn is one invocation of a Socket.
type turn struct {
	*Socket
	what, conn string // name of the event, id of the connection
	begun      time.Time
	server     string
	session    storage.ID
	id         json.RawMessage
	batch      []wire.Message // the messages of a batch
	method     string
	err        error
	who        storage.Identity
	asked      string // the server or group in the address of the request
	in, out    int    // bytes of the message and of the reply
	called     called
}

func (k *Socket) turn(what, conn string) *turn {
	return &turn{Socket: k, what: what, conn: conn, begun: time.Now()}
}

// connect makes the checks of a connection in this order, and then opens it:
//
//	Host, Origin                      403
//	subprotocols without mcp          400
//	no server named                   400
//	authentication, or the ticket     401
//	right to use the server           403
//	no such server                    404
//	malformed id                      400
//	limits of the caller              429
//	no such session                   404
func (x *turn) connect(ctx context.Context, r *http.Request) (protocol string, err error) {
	x.asked = askedOver(r.URL.Query())
	if err := x.opts.checkOrigin(r); err != nil {
		return "", err
	}
	if protocol, err = subprotocol(r); err != nil {
		return "", err
	}
	query := r.URL.Query()
	p, err := x.arrives(ctx, r)
	if err != nil {
		return "", err
	}
	c := p.caller
	x.server, x.who = c.Server.Name, c.Identity
	cursors := map[string][]storage.EventID{}
	for _, text := range query["last-event-id"] {
		member, id, err := sessions.MemberEvent(text)
		if member != "" && p.group == nil {
			_, err = storage.ParseEventID(text)
		}
		if err != nil {
			return "", err
		}
		cursors[member] = append(cursors[member], id)
	}
	resume := storage.ID(query.Get("session"))
	if resume == "" && len(cursors) > 0 {
		return "", storage.Errorf(storage.Invalid, "last-event-id goes with a session; add session=ID")
	}
	c.Conn, c.EventIDs = x.conn, query.Get("event-ids") == "1"
	release, err := x.opts.admitted(ctx, c)
	if err != nil {
		return "", err
	}
	defer release()
	s, owing, err := x.opts.Host.Connect(ctx, c, p.members, resume, cursors)
	if err != nil {
		return "", err
	}
	x.session = s.ID
	for _, id := range owing {
		if err := x.push(ctx, id); err != nil {
			return protocol, err
		}
	}
	return protocol, nil
}

// arrives authenticates the caller of r at the server or the group in its query. A connection to a
// group keeps the options in the query, and the members that the client could use when it connected.
func (x *turn) arrives(ctx context.Context, r *http.Request) (party, error) {
	query := r.URL.Query()
	find := func(group string, names []string) (map[string]storage.Identity, error) {
		return x.identify(ctx, r, group, names)
	}
	switch name := query.Get("server"); {
	case name != "":
		return x.opts.atServer(r, name, "there is no such server; check the name behind ?server=", storage.WebSocket, find)
	case query.Has("group"):
		name = groupAsked(query)
		g, ok := x.opts.groupNamed(name, query)
		if !ok {
			return party{}, refusal(http.StatusNotFound, storage.NotFound, wire.CodeServer, "there is no such group; check the name behind ?group=")
		}
		p, err := x.opts.atGroup(groupAddress(name), g, storage.WebSocket, find)
		p.caller.Group = &storage.GroupConnection{Plain: g.Plain, Search: g.Search, Members: p.rules()}
		return p, err
	}
	return party{}, storage.Errorf(storage.Invalid, "the address names no server; connect to …?server=NAME")
}

// still returns the caller's identity at each of the servers, by the server's name. It leaves out
// servers that the caller may not use any more. At a group, the caller has the servers in who.Members.
func (x *turn) still(ctx context.Context, who storage.Identity, group string, servers []string) (map[string]storage.Identity, error) {
	if group != "" {
		servers = slices.DeleteFunc(slices.Clone(servers), func(name string) bool { _, had := who.Members[name]; return !had })
	}
	may, err := x.opts.Auth.ConfirmMembers(ctx, who.Credential, group, servers)
	all := map[string]storage.Identity{}
	for _, name := range may {
		if group != "" {
			who.ToolRules = who.Members[name]
		}
		all[name] = who
	}
	return all, err
}

// subprotocol picks one of the subprotocols that the client offers. A client that
// offers none counts as speaking MCP.
func subprotocol(r *http.Request) (string, error) {
	offered := strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ",")
	if strings.TrimSpace(offered) == "" {
		return "", nil
	}
	for p := range strings.SplitSeq(offered, ",") {
		if strings.TrimSpace(p) == Subprotocol {
			return Subprotocol, nil
		}
	}
	return "", storage.Errorf(storage.Invalid, "none of the offered WebSocket subprotocols is supported; offer %s", Subprotocol)
}

// message checks a message and hands it to the host. validate.go explains most of the checks.
func (x *turn) message(ctx context.Context, data []byte) ([]byte, error) {
	if limit, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, limit.Add(-spare/2))
		defer cancel()
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	msgs, batch, err := wire.ParseBody(data)
	x.method, x.id = subject(msgs)
	if batch {
		x.batch = msgs
	}
	x.called.asks(msgs)
	ctx = x.called.in(ctx)
	if err != nil {
		return nil, err
	}
	k, err := x.record(ctx)
	if err != nil {
		return nil, err
	}
	p, err := x.holder(ctx, k)
	if err != nil {
		return nil, err
	}
	release, err := x.admit(ctx, p.caller, msgs)
	if err != nil {
		return nil, err
	}
	defer release()
	answer, err := x.hand(ctx, x.opts.endpoint(p, storage.WebSocket), msgs, batch)
	if answers := x.called.refused(msgs, batch, err); answers != nil {
		x.err = err
		return joined(answers, batch), nil
	}
	if err != nil || answer == nil {
		return nil, err
	}
	return sessions.Fit(answer), nil
}

// hand gives messages to the server that they are for. If an answer goes into the log, the invocation
// that writes it also pushes it. hand then returns a notice with the stream of the request, or nil. It
// returns any other answer itself.
func (x *turn) hand(ctx context.Context, endpoint sessions.Endpoint, msgs []wire.Message, batch bool) ([]byte, error) {
	initialize := slices.ContainsFunc(msgs, isInitialize)
	var call sessions.Response
	var err error
	switch {
	case initialize && batch:
		return nil, initializeInBatch()
	case initialize:
		_, call, err = endpoint.Initialize(ctx, x.session, msgs[0])
	default:
		var to sessions.Routed
		if to, err = endpoint.Route(ctx, x.session, msgs, batch); err != nil {
			return nil, err
		}
		address := x.server // for a group, this is its address
		if !strings.HasPrefix(address, "/") {
			address = "/" + address + "/mcp"
		}
		if to.Caller.Server.Name != x.server {
			x.called.asks(to.Messages) // the log line names the tool as the member of the group does, without a prefix
			x.server = to.Caller.Server.Name
		}
		if err := x.opts.permit(to.Caller, address, to.Messages); err != nil {
			return nil, err
		}
		call, err = to.Accept(ctx)
	}
	if err != nil || call == nil {
		return nil, err
	}
	x.called.begins(call)
	if !call.Boxed() { // no box will report the end of the call
		x.called.outlives(call)
	}
	events, err := call.Accepted(ctx)
	switch c := endpoint.Caller(); {
	case err != nil:
		return nil, err
	case len(events) > 0:
		if x.called.tool != "" {
			x.called.ends(events[0].Raw, x.opts.ShowErrors)
		}
		if initialize {
			x.opts.Host.Tell(ctx, c, x.session)
		}
		return events[0].Raw, nil
	case c.EventIDs && call.Stored():
		return call.Notice(x.id), nil
	default:
		return nil, nil
	}
}

// admit asks [Options.Admit] whether the messages of a connection are let in, and refuses messages
// of the modern era.
func (x *turn) admit(ctx context.Context, c sessions.Caller, msgs []wire.Message) (release func(), err error) {
	release, err = x.opts.admitted(ctx, c)
	if flood(err) {
		// If Drop fails, the client's next message closes the connection.
		_ = x.opts.Host.Drop(ctx, x.conn)
	}
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if requested, modern := modernVersion(m, ""); modern {
			release()
			return nil, unsupported(requested, wire.LegacyVersions())
		}
	}
	return release, nil
}

func (x *turn) record(ctx context.Context) (storage.Connection, error) {
	c, ok := x.recall.get(x.conn, x.begun)
	if !ok {
		var err error
		if c, err = x.opts.Host.Connection(ctx, x.conn); err != nil {
			return storage.Connection{}, err
		}
		x.recall.put(c)
	}
	x.session, x.server, x.who = c.Session, c.Server, c.Identity()
	return c, nil
}

// holder returns who has a connection, if the client may still use what it is connected to.
func (x *turn) holder(ctx context.Context, k storage.Connection) (p party, err error) {
	find := func(group string, names []string) (map[string]storage.Identity, error) {
		return x.still(ctx, x.who, group, names)
	}
	if k.Group != nil {
		name, _, _ := groupOf(k.Server)
		g, ok := x.opts.groupNamed(name, nil)
		if !ok {
			return p, refusal(http.StatusNotFound, storage.NotFound, wire.CodeServer, "the group is not configured any more")
		}
		g.Plain, g.Search = k.Group.Plain, k.Group.Search
		p, err = x.opts.atGroup(k.Server, g, storage.WebSocket, find)
	} else {
		p, err = x.opts.atServer(nil, k.Server, "the server is not configured any more", storage.WebSocket, find)
	}
	if err := x.confirmed(ctx, err); err != nil {
		return p, err
	}
	connected := func(c *sessions.Caller) { c.Conn, c.EventIDs, c.Group = k.ID, k.EventIDs, k.Group }
	connected(&p.caller)
	for i := range p.members {
		connected(&p.members[i])
	}
	return p, nil
}

func (x *turn) refuse(err error) (status int, body []byte) {
	p := problemOf(err)
	x.err = logged(err, p)
	if answers := refusedAll(x.batch, p.rpc); answers != nil { // no HTTP status refuses the other requests
		return p.status, wire.Array(answers)
	}
	return p.status, wire.ErrorResponse(x.id, p.rpc)
}

// finish reports this invocation to the Observer at its end. A panic counts as the invocation's
// error.
func (x *turn) finish(ctx context.Context, fault any) (panicked bool) {
	ctx = x.called.in(ctx)
	e := &observe.Event{
		Kind: observe.Socket, What: x.what, Conn: x.conn, RPCMethod: wire.Clip(x.method), RPCID: kindOf(x.id), Trace: storage.TraceOf(ctx),
		Account: storage.Account{
			Over: storage.OverSocket, Tenant: x.who.Tenant, Principal: x.who.Principal, Server: x.server, Session: x.session,
			In: x.in, Out: x.out, Took: time.Since(x.begun),
		},
	}
	if x.what == "push" {
		e.Over = storage.OverEvent
	}
	if fault != nil {
		x.err, e.Stack = storage.Errorf(storage.Internal, "panic: %v", fault), string(debug.Stack())
	}
	if e.Code = storage.CodeOf(x.err); x.err != nil {
		e.Level, e.Status = slog.LevelWarn, problemOf(x.err).status
		if e.Status >= http.StatusInternalServerError && !errors.Is(x.err, context.Canceled) {
			e.Level, e.Error = slog.LevelError, x.err.Error()
		}
	}
	x.called.tell(ctx, e, sender{x.who, storage.AddressOf(ctx), x.asked}, x.err)
	x.opts.Observer.Tell(ctx, x.opts.Meter, e)
	x.opts.outlive(ctx, &x.called, e)
	return fault != nil
}

// queryTicket is the query parameter for the ticket of a client that connects.
const queryTicket = "ticket"

// identify returns the identities of the client that asks for a connection, by its ticket or else by
// its headers. The argument group is "" for a connection to a server.
func (x *turn) identify(ctx context.Context, r *http.Request, group string, servers []string) (map[string]storage.Identity, error) {
	query := r.URL.Query()
	switch {
	case !query.Has(queryTicket):
		return x.opts.Auth.Members(r, group, servers)
	case x.opts.Tickets == nil:
		return nil, storage.Errorf(storage.Unauthenticated, "this endpoint takes no tickets; send an Authorization header")
	}
	to := group
	if group == "" {
		to = servers[0]
	}
	who, err := x.opts.Tickets.Redeem(ctx, query.Get(queryTicket), to)
	if err != nil {
		return nil, err
	}
	return x.still(ctx, who, group, servers)
}

// confirmed returns err, the result of confirming the credential of a connection. If err says
// that the client may not use the connection any more, confirmed closes it.
func (x *turn) confirmed(ctx context.Context, err error) error {
	if code := storage.CodeOf(err); code == storage.Unauthenticated || code == storage.Forbidden {
		x.recall.forget(x.conn)
		// If Drop fails, the client's next message closes the connection.
		_ = x.opts.Host.Drop(ctx, x.conn)
	}
	return err
}
