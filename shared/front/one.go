package front

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/group"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Group is several servers at one address:
//
//	/mcp             all servers
//	/g/<group>/mcp   those of a group
//	/sse, /message   HTTP+SSE; for a group /g/<group>/sse and /message below it
//	/ticket          a ticket for one WebSocket connection; for a group below it, too
//
// It is served over every transport. A caller sees the servers that it may use.
type Group struct {
	Servers   []string // its members; nil: all servers
	Separator string   // between the names of a member and of its tool; "": group.DefaultSeparator
	Plain     bool     // names that no two members have get no prefix
	Search    bool     // the client gets find_tools and call_tool in place of the tools
}

// groupOf returns the name of the group that a path belongs to, "" for all servers. It
// also returns the rest of the path: "mcp", "sse" and "message" of HTTP+SSE, or "ticket".
func groupOf(path string) (name, resource string, ok bool) {
	rest := strings.TrimPrefix(strings.TrimSuffix(path, "/"), "/")
	if of, found := strings.CutPrefix(rest, "g/"); found {
		if name, rest, found = strings.Cut(of, "/"); !found || name == "" {
			return "", "", false
		}
	}
	return name, rest, strings.HasPrefix(path, "/") && slices.Contains([]string{"mcp", "sse", "message", "ticket"}, rest)
}

// one serves a request to the address of a group. A message for a member is handled as on
// the member's own path, with the names in it changed. So is every message back. one
// answers itself what concerns all members: initialize, discover, and lists.
type one struct {
	x       *exchange
	group   Group
	caller  host.Caller   // whose server is the group
	members []host.Caller // the caller, at each member that it may use
	names   *group.Names
	session session.ID // of the group
	refuses error      // why a request of the modern era has no member
	finds   bool       // a request of the modern era is find_tools
	extends bool       // a request of the modern era has a method of an extension
	// take is not nil for a client that gets its answers in another way than in the response to
	// its message. It serves messages for the member that the exchange has entered.
	take func(msgs []wire.Message, batch bool) error
	most int // bytes of a page of a list; 0: lists have one page
}

// seen changes what the client of a group gets from a member. nil changes nothing.
type seen struct {
	group.View
	place func(cursor string) string // the id of an event, from that of the member's
}

func (s *seen) message(raw []byte) []byte {
	if s == nil {
		return raw
	}
	return s.Message(raw)
}

func (s *seen) cursor(id string) string {
	if s == nil || id == "" {
		return id
	}
	return s.place(id)
}

// oneOf returns the group that a request is for.
func oneOf(x *exchange) (*one, bool) {
	name, resource, ok := groupOf(x.r.URL.Path)
	if !ok || resource == "ticket" && x.opts.Tickets == nil {
		return nil, false
	}
	return newOne(x, name, x.r.URL.Query())
}

// newOne returns the group with a name, as the query of an address asks for it.
func newOne(x *exchange, name string, query url.Values) (*one, bool) {
	if x.opts.Groups == nil {
		return nil, false
	}
	g, ok := x.opts.Groups(name)
	g.Plain = g.Plain || query.Get("names") == "plain"
	g.Search = g.Search || query.Get("tools") == "search"
	o := &one{x: x, group: g}
	o.caller.Server.Name = "/mcp"
	if name != "" {
		o.caller.Server.Name = "/g/" + name + "/mcp"
	}
	return o, ok
}

func (o *one) serve() error {
	x := o.x
	allowed, verbs := methods, map[string]func() error{http.MethodPost: o.post, http.MethodGet: oneStreams{o}.get, http.MethodDelete: o.delete}
	switch _, resource, _ := groupOf(x.r.URL.Path); resource {
	case "sse":
		allowed, verbs = methodsSSE, map[string]func() error{http.MethodGet: oneSSE{o}.get}
	case "message":
		allowed, verbs = methodsMessage, map[string]func() error{http.MethodPost: oneSSE{o}.post}
	case "ticket":
		allowed, verbs = methodsMessage, map[string]func() error{http.MethodPost: o.ticket}
	}
	serve := verbs[x.r.Method]
	if serve == nil {
		return notAllowed(allowed, "this method is not served here; use "+strings.TrimSuffix(allowed, ", OPTIONS"))
	}
	err := o.gather(session.HTTP, func(names []string) (map[string]session.Identity, error) {
		may, err := x.opts.Auth.Members(x.r, o.caller.Server.Name, names)
		if err != nil {
			x.challenge(true, err)
		}
		return may, err
	})
	if err != nil {
		return err
	}
	if (browser{x}).asks() {
		browser{x}.page(http.StatusOK, "")
		return nil
	}
	x.one, x.caller = o, o.caller
	release, err := x.opts.admitted(x.ctx(), x.caller)
	if err != nil {
		return err
	}
	defer release()
	return serve()
}

// gather finds the members that the caller may use. who returns the caller's identities
// at the servers that it may use, by name.
func (o *one) gather(over session.Transport, who func(names []string) (map[string]session.Identity, error)) error {
	x := o.x
	servers := o.servers()
	if len(servers) == 0 {
		return refusal(http.StatusNotFound, session.NotFound, wire.CodeServer, "there is no server at this address; the servers file has none for it")
	}
	names := make([]string, len(servers))
	for i, s := range servers {
		names[i] = s.Name
	}
	may, err := who(names)
	if err != nil {
		return err
	}
	names = nil
	for _, server := range servers {
		who, ok := may[server.Name]
		if !ok {
			continue
		}
		if who, err = whole(who, nil); err != nil {
			return err
		}
		c := x.opts.caller(who, server, over)
		o.members, names = append(o.members, c), append(names, server.Name)
		if o.caller.Tenant == "" {
			group := o.caller.Server
			o.caller = c
			o.caller.Server, o.caller.Tools = group, session.ToolFilter{}
		}
	}
	if len(o.members) == 0 {
		return session.Errorf(session.Forbidden, "you may use no server at this address; ask its operator for access")
	}
	o.names = group.NewNames(o.group.Separator, names)
	return nil
}

// ticket issues a ticket for the group, as [exchange.ticket] does for a server.
func (o *one) ticket() error { return o.x.ticket() }

// rules returns the members that the caller may use, each with the rules for its tools
// that apply to the caller.
func (o *one) rules() map[string][]string {
	all := map[string][]string{}
	for _, c := range o.members {
		all[c.Server.Name] = c.ToolRules
	}
	return all
}

// servers returns the servers of the group that are served.
func (o *one) servers() (all []host.Server) {
	if o.x.opts.Names == nil {
		return nil
	}
	for _, name := range o.x.opts.Names() {
		if o.group.Servers != nil && !slices.Contains(o.group.Servers, name) {
			continue
		}
		if server, ok := o.x.opts.Servers(name); ok {
			all = append(all, server)
		}
	}
	return all
}

// member returns the caller at a member.
func (o *one) member(name string) (host.Caller, bool) {
	i := slices.IndexFunc(o.members, func(c host.Caller) bool { return c.Server.Name == name })
	if i < 0 {
		return host.Caller{}, false
	}
	return o.members[i], true
}

// join opens the session with a member that a message is for. A mark in the stream of the group
// then tells a function that holds the client's standalone stream to read the member's stream,
// too.
func (o *one) join(c host.Caller) error {
	err := o.x.opts.Host.Join(o.x.ctx(), o.caller, o.session, c)
	if err == nil && c.Transport == session.HTTP {
		err = o.x.opts.Host.Say(o.x.ctx(), o.session, joinedMark(c.Server.Name))
	}
	return err
}

// markJoined is the method of a mark.
const markJoined = "notifications/dormouse/joined"

func joinedMark(member string) []byte {
	return wire.NewNotification(markJoined, append(wire.AppendString([]byte(`{"server":`), member), '}'))
}

// joinedOf returns the member that a mark is about, "" for another message.
func joinedOf(raw []byte) string {
	if method, _ := wire.String(wire.Lookup(raw, "method")); method != markJoined {
		return ""
	}
	name, _ := wire.String(wire.Lookup(raw, "params", "server"))
	return name
}

func (o *one) post() error {
	x := o.x
	msgs, batch, err := streamable{x}.read()
	if err != nil {
		return err
	}
	if anyModern(msgs, x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return oneModern{o}.post(msgs, batch)
	}
	s := streamable{x}
	initialize, err := s.checkMessages(msgs, batch)
	if err != nil {
		return err
	}
	if initialize {
		return o.initialize(msgs[0])
	}
	if err := s.sessionID(); err != nil {
		return err
	}
	o.session = x.session
	if batch {
		return o.batch(msgs)
	}
	return o.legacy(msgs[0])
}

// serveAside serves messages of a client that gets its answers in another way than in the
// response to a message.
func (o *one) serveAside(msgs []wire.Message, batch bool) error {
	switch {
	case slices.ContainsFunc(msgs, isInitialize) && batch:
		return initializeInBatch()
	case isInitialize(msgs[0]):
		return o.initialize(msgs[0])
	case batch:
		return o.batch(msgs)
	default:
		return o.legacy(msgs[0])
	}
}

// batch serves a batch (2025-03-26) whose messages are all for one member.
func (o *one) batch(msgs []wire.Message) error {
	var to string
	for i, m := range msgs {
		t, err := o.target(m)
		if err != nil {
			return err
		}
		if t.Member == "" || i > 0 && t.Member != to {
			return session.Errorf(session.Invalid, "the messages of this batch are not all for one server; send each in a request of its own")
		}
		to = t.Member
		if msgs[i], err = t.Message(m); err != nil {
			return err
		}
	}
	return o.forward(to, msgs, true)
}

// legacy serves one message of a session.
func (o *one) legacy(m wire.Message) error {
	x := o.x
	switch {
	case m.Method == wire.MethodPing && m.Kind == wire.Request, m.Method == wire.NotifyInitialized:
		return o.itself(m)
	case m.Kind == wire.Request && isListed(m.Method):
		s, err := o.groupSession()
		if err != nil {
			return err
		}
		result, err := oneLists{o}.list(m, s, nil)
		if err != nil {
			return o.answer(m, err)
		}
		x.json(http.StatusOK, wire.ResultResponse(m.ID, result))
		return nil
	case m.Kind == wire.Request && m.Method == wire.MethodSetLevel:
		level, _ := wire.String(wire.Lookup(m.Params, "level"))
		if err := bridge.CheckLevel(clip(level)); err != nil {
			return o.answer(m, err)
		}
		if err := x.opts.Host.SetLevel(x.ctx(), o.caller, o.session, o.members, m); err != nil {
			return err
		}
		x.json(http.StatusOK, wire.ResultResponse(m.ID, []byte("{}")))
		return nil
	case m.Kind == wire.Request && m.Method == wire.MethodTasksList:
		return oneLists{o}.tasks(m)
	}
	if handled, err := o.search(m); handled {
		return err
	}
	t, err := o.target(m)
	if err == nil && t.Member == "" && t.Place == nil && m.Kind == wire.Request && wire.OfExtension(m.Method) {
		t.Member, err = oneLists{o}.owner(m)
	}
	switch {
	case err != nil:
		return o.answer(m, err)
	case t.Member != "":
		if m, err = t.Message(m); err != nil {
			return err
		}
		return o.forward(t.Member, []wire.Message{m}, false)
	case m.Kind == wire.Notification:
		return o.tell(m)
	case m.Kind == wire.Request && t.Place != nil:
		return o.answer(m, &wire.Error{Code: wire.CodeInvalidParams, Message: "no server here has what " + clip(m.Method) + " names"})
	case m.Kind == wire.Request:
		return o.answer(m, noMethod(m.Method))
	default: // an answer to a question of nobody
		x.empty(http.StatusAccepted)
		return nil
	}
}

// loaded reads the session of the group.
func (o *one) loaded() (session.Session, error) {
	s, _, err := o.x.opts.Host.Load(o.x.ctx(), o.caller, o.session)
	return s, err
}

// groupSession reads the session of the group when it is initialized.
func (o *one) groupSession() (session.Session, error) {
	return o.x.opts.Host.Session(o.x.ctx(), o.caller, o.session)
}

// itself hands a message to the session of the group.
func (o *one) itself(m wire.Message) error {
	x := o.x
	call, err := x.opts.Host.Accept(x.ctx(), o.caller, o.session, []wire.Message{m}, false)
	if err != nil {
		return err
	}
	if call == nil {
		x.empty(http.StatusAccepted)
		return nil
	}
	return streamable{x}.respond(call, false, x.until(x.opts.Limit))
}

// answer answers a message that no member can be found for.
func (o *one) answer(m wire.Message, err error) error {
	var rpc *wire.Error
	if m.Kind != wire.Request || !errors.As(err, &rpc) {
		return err
	}
	o.x.err = err
	o.x.called.outcome, o.x.called.why = outcomeFailed, rpc.Message
	o.x.json(http.StatusOK, wire.ErrorResponse(m.ID, rpc))
	return nil
}

// forward serves messages as on the path of a member.
func (o *one) forward(member string, msgs []wire.Message, batch bool) error {
	if err := o.enter(member, msgs, batch); err != nil {
		return err
	}
	if o.take != nil {
		return o.take(msgs, batch)
	}
	return streamable{o.x}.take(msgs, batch)
}

// enter makes a member the server of the exchange.
func (o *one) enter(member string, msgs []wire.Message, batch bool) error {
	x := o.x
	c, ok := o.member(member)
	if !ok {
		return session.Errorf(session.Forbidden, "you may not use the server %q; ask its operator for access", member)
	}
	x.caller, x.msgs, x.batch = c, msgs, batch
	x.seen = o.view(member)
	x.called.asks(msgs)
	return nil
}

// view returns how the client sees a member.
func (o *one) view(member string) *seen {
	return &seen{View: group.View{Member: member, Plain: o.group.Plain}, place: func(id string) string { return member + placeMark + id }}
}

// tell handles a notification that names no member. It passes the notification to each
// member with which the group's session has opened a session. It cannot concern the others.
func (o *one) tell(m wire.Message) error {
	x := o.x
	g, err := o.groupSession()
	if err != nil {
		return err
	}
	for _, c := range o.members {
		if !slices.Contains(g.Members, c.Server.Name) {
			continue
		}
		_, err := x.opts.Host.Accept(x.ctx(), c, host.MemberID(o.session, c.Server.Name), []wire.Message{m}, false)
		if err != nil && !errors.Is(err, session.NotFound) {
			return err
		}
	}
	x.empty(http.StatusAccepted)
	return nil
}

// delete ends the session of the group, and those that it has with members.
func (o *one) delete() error {
	x := o.x
	if isModern(x.r.Header.Get(wire.HeaderProtocolVersion)) {
		return notAllowed(methodsModern, "this protocol version has no session to end; use POST")
	}
	s := streamable{x}
	if err := s.checkVersion(); err != nil {
		return err
	}
	if err := s.sessionID(); err != nil {
		return err
	}
	o.session = x.session
	g, err := o.loaded()
	if err != nil {
		return err
	}
	for _, c := range o.members {
		if slices.Contains(g.Members, c.Server.Name) {
			err := x.opts.Host.End(x.ctx(), c, host.MemberID(o.session, c.Server.Name))
			if err != nil && !errors.Is(err, session.NotFound) {
				return err
			}
		}
	}
	if err := x.opts.Host.End(x.ctx(), o.caller, o.session); err != nil {
		return err
	}
	x.empty(http.StatusNoContent)
	return nil
}
