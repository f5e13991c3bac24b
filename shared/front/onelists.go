package front

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/group"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// The lists of a group come from the handshake records, in one read. A member is asked if
// its box is awake and the record may be out of date. It is also asked if no client has
// ever had the list. So a list wakes no server that has been listed before. Its client
// may get a list that a sleeping server would change when it starts; the server then
// announces the change.

// firstLists is how long a list waits for the members that have to be asked. Those that have
// not answered by then are left out, or listed as they last were.
const firstLists = 20 * time.Second

// metaUnavailable is the member of _meta in a list which names the servers that could not be
// asked, with the reason of each. They are left out, or listed as they last were.
const metaUnavailable = "dormouse/unavailable"

// oneLists serves what a group knows of its members.
type oneLists struct{ *one }

func isListed(method string) bool {
	switch method {
	case wire.MethodToolsList, wire.MethodPromptsList, wire.MethodResourcesList, wire.MethodResourceTemplatesList, group.MethodSkillsList:
		return true
	}
	return false
}

// known returns what the records know of the members' lists. They keep no lists of skills, so
// each member that has skills is asked.
func (o oneLists) known(ctx context.Context, method string, s session.Session) ([]host.Known, error) {
	if method != group.MethodSkillsList {
		return o.x.opts.Host.Lists(ctx, s, o.members, method)
	}
	known, err := o.x.opts.Host.Greetings(ctx, o.members, s.Version)
	some := false
	for i, k := range known {
		if k.Result != nil && !group.HasSkills(k.Result) {
			known[i] = host.Known{Result: json.RawMessage("{}"), Fresh: true}
			continue
		}
		known[i], some = host.Known{Up: true}, true
	}
	if err == nil && !some {
		err = noMethod(method)
	}
	return known, err
}

// list returns the result of a list method. client describes a modern client; it is nil
// for a client with a session.
func (o oneLists) list(m wire.Message, s session.Session, client *host.Client) (json.RawMessage, error) {
	if o.searches() && m.Method == wire.MethodToolsList {
		return searchTools(), nil
	}
	entries, missing, err := o.entriesFor(o.x.ctx(), m.Method, s, client, true)
	if err != nil {
		return nil, err
	}
	entries, next, err := o.page(entries, m.Params)
	if err != nil {
		return nil, err
	}
	result := group.Result(m.Method, entries)
	if next != "" {
		result = append(append(append(result[:len(result)-1], `,"nextCursor":"`...), next...), `"}`...)
	}
	if m.Method == group.MethodSkillsList && client != nil {
		result = append(result[:len(result)-1], `,"ttlMs":0,"cacheScope":"private"}`...)
	}
	return without(result, missing), nil
}

// without adds to a list which members are left out, or may be listed wrongly, and why.
func without(list json.RawMessage, missing map[string]string) json.RawMessage {
	meta, err := json.Marshal(map[string]map[string]string{metaUnavailable: missing})
	if len(missing) == 0 || err != nil { // texts always encode
		return list
	}
	return append(append(append(list[:len(list)-1], `,"_meta":`...), meta...), '}')
}

// pageSpare is what a message with a page needs besides the entries, in bytes: the names of
// the servers that are left out, with their reasons.
const pageSpare = 16 << 10

// page returns the entries of one page of a list, and the cursor of the next one, "" for none.
// A cursor is the number of the entries before its page.
func (o oneLists) page(entries []group.Entry, params json.RawMessage) (page []group.Entry, next string, err error) {
	if o.most == 0 {
		return entries, "", nil
	}
	from := 0
	if cursor := wire.Lookup(params, "cursor"); cursor != nil {
		text, _ := wire.String(cursor)
		if from, err = strconv.Atoi(text); err != nil || from < 0 || from > len(entries) {
			return nil, "", &wire.Error{Code: wire.CodeInvalidParams, Message: "this cursor is of no page of the list; list again from the beginning"}
		}
	}
	size := 0
	for i, e := range entries[from:] {
		if size += len(e.Raw) + 1; size > o.most && i > 0 {
			return entries[from : from+i], strconv.Itoa(from + i), nil
		}
	}
	return entries[from:], "", nil
}

// model returns the session whose lists a request is about.
func (o oneLists) model() (session.Session, error) {
	if o.session != "" {
		return o.groupSession()
	}
	return modelOf(bridge.Superset(nil)), nil
}

// modelOf returns the session that stands for a modern client, as far as lists depend on it.
func modelOf(init json.RawMessage) session.Session {
	return session.Session{Transport: session.Modern, Version: wire.V20251125, Init: init}
}

func (o oneLists) entries(ctx context.Context, method string, s session.Session) ([]group.Entry, map[string]string, error) {
	return o.entriesFor(ctx, method, s, nil, true)
}

// entriesFor returns what the members have, and why some are left out. If wakes is false, it
// leaves out sleeping members whose list nobody has ever got.
func (o oneLists) entriesFor(ctx context.Context, method string, s session.Session, client *host.Client, wakes bool) ([]group.Entry, map[string]string, error) {
	known, err := o.known(ctx, method, s)
	if err != nil {
		return nil, nil, err
	}
	if s.Transport == session.Modern && client == nil {
		client = &host.Client{Init: s.Init}
	}
	ctx, cancel := context.WithTimeout(ctx, firstLists)
	defer cancel()
	lists := make([]group.List, len(o.members))
	failed := make([]error, len(o.members))
	var asks sync.WaitGroup
	for i, c := range o.members {
		lists[i] = group.List{Member: c.Server.Name, Result: known[i].Result}
		if known[i].Fresh || known[i].Result != nil && !known[i].Up {
			continue
		}
		if known[i].Result == nil && !known[i].Up {
			if lists[i].Result, err = o.x.opts.Host.Borrow(ctx, s, c, method); err != nil {
				return nil, nil, err
			}
		}
		if !known[i].Up && (lists[i].Result != nil || !wakes) {
			continue
		}
		asks.Go(func() {
			result, err := o.ask(ctx, c, s, client, method)
			if err == nil || hasNone(err) {
				lists[i].Result = result
			} else {
				failed[i] = err
			}
		})
	}
	asks.Wait()
	if method == wire.MethodToolsList && s.Transport == session.Modern {
		if err := o.learn(lists); err != nil {
			return nil, nil, err
		}
	}
	missing := map[string]string{}
	for i, err := range failed {
		if err == nil {
			continue
		}
		missing[lists[i].Member] = whyNot(err)
		if lists[i].Result != nil {
			missing[lists[i].Member] += "; this is its last known list"
		}
	}
	return o.names.Merge(method, o.group.Plain, lists...), missing, nil
}

// learn keeps what the members' lists say about calls of their tools, as a list at a member's own
// address does. Cost: a read for each member whose list says anything, and a write if it is news.
func (o oneLists) learn(lists []group.List) error {
	for i, l := range lists {
		notes := bridge.ToolNotes(l.Result)
		if notes == nil {
			continue
		}
		c := o.members[i]
		c.Transport = session.Modern
		if err := o.x.opts.Host.Learn(o.x.ctx(), c, nil, notes); err != nil {
			return err
		}
	}
	return nil
}

// hasNone reports whether a member has refused a list because it has none of this kind.
func hasNone(err error) bool {
	var rpc *wire.Error
	return errors.As(err, &rpc) && rpc.Code == wire.CodeMethodNotFound
}

// whyNot returns the reason why a member could not be asked for a list.
func whyNot(err error) string {
	var rpc *wire.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "it has not answered within " + firstLists.String() + "; ask for the list again"
	case errors.As(err, &rpc):
		return rpc.Message
	default:
		return problemOf(err).rpc.Message
	}
}

// ask gets a list from a member, page by page, and what was read of a list that never ends.
// Errors: *[wire.Error] is the member's own.
func (o oneLists) ask(ctx context.Context, c host.Caller, s session.Session, client *host.Client, method string) (json.RawMessage, error) {
	list := json.RawMessage(nil)
	var params json.RawMessage
	var pages wire.Pages
	for {
		page, err := o.askOnce(ctx, c, s, client, method, params)
		if err != nil {
			return nil, err
		}
		if list == nil {
			list = page
		} else {
			list = group.Joined(method, list, page)
		}
		next, err := pages.Next(page)
		if err != nil || next == nil {
			return group.Whole(method, list), nil
		}
		params = append(append([]byte(`{"cursor":`), next...), '}')
	}
}

func (o oneLists) askOnce(ctx context.Context, c host.Caller, s session.Session, client *host.Client, method string, params json.RawMessage) (json.RawMessage, error) {
	call, err := o.begin(ctx, c, s, client, method, params)
	if err != nil {
		return nil, err
	}
	until, _ := ctx.Deadline()
	for {
		events, err := call.Next(ctx, until)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if !isResponse(e.Raw) {
				continue
			}
			if result := wire.Lookup(e.Raw, "result"); result != nil {
				return result, nil
			}
			fault := wire.Error{Code: wire.CodeInternal}
			if err := json.Unmarshal(wire.Lookup(e.Raw, "error"), &fault); err != nil {
				return nil, err
			}
			return nil, &fault
		}
		if len(events) == 0 {
			if !call.Done() {
				return nil, context.DeadlineExceeded
			}
			return nil, errOver
		}
	}
}

// begin sends a request to a member: in the session that the client has with it, or for a
// modern client, in the one that is pinned to the caller.
func (o oneLists) begin(ctx context.Context, c host.Caller, s session.Session, client *host.Client, method string, params json.RawMessage) (*host.Call, error) {
	h := o.x.opts.Host
	pinned := func(client host.Client) (*host.Call, error) {
		c.Transport, c.Conn = session.Modern, ""
		call, _, err := h.Send(ctx, c, client, method, params)
		return call, err
	}
	if client != nil {
		return pinned(*client)
	}
	// Several lists may be asked for at once in one session, so each request has its own id.
	m, err := wire.Parse(wire.NewRequest(wire.AppendString(nil, "dormouse-"+session.NewNonce()), method, params))
	if err != nil {
		return nil, err
	}
	id := host.MemberID(s.ID, c.Server.Name)
	if o.take != nil { // the answer must not be pushed to the client
		call, err := h.Ask(ctx, c, id, m)
		if errors.Is(err, session.NotFound) && isListed(method) {
			return pinned(host.Client{Init: s.Init}) // the client's stream would not know of a session that is opened here
		}
		return call, err
	}
	call, err := h.Accept(ctx, c, id, []wire.Message{m}, false)
	if errors.Is(err, session.NotFound) {
		if err = o.join(c); err == nil {
			call, err = h.Accept(ctx, c, id, []wire.Message{m}, false)
		}
	}
	return call, err
}

// initialize opens the session of the group.
func (o *one) initialize(m wire.Message) error {
	x := o.x
	opened, call, err := x.opts.Host.Greet(x.ctx(), o.caller, o.session, m, func(version string) (json.RawMessage, error) {
		greeting, _, err := oneLists{o}.greeting(version)
		if err != nil {
			return nil, err
		}
		return append([]byte(`{"protocolVersion":"`+version+`",`), greeting[1:]...), nil
	})
	if err != nil {
		return err
	}
	x.session = opened.ID
	x.w.Header().Set(wire.HeaderSessionID, string(opened.ID))
	return streamable{x}.respond(call, false, x.until(x.opts.Limit))
}

// greeting joins what is known of the members' answers to initialize. whole reports whether all
// of them are known.
func (o oneLists) greeting(version string) (greeting json.RawMessage, whole bool, err error) {
	known, err := o.x.opts.Host.Greetings(o.x.ctx(), o.members, version)
	if err != nil {
		return nil, false, err
	}
	members := o.lists(known)
	whole = !slices.ContainsFunc(members, func(m group.List) bool { return m.Result == nil })
	return group.Greeting(o.names, members...), whole, nil
}

// lists returns what is known of each member.
func (o oneLists) lists(known []host.Known) []group.List {
	lists := make([]group.List, len(known))
	for i, k := range known {
		lists[i] = group.List{Member: o.members[i].Server.Name, Result: k.Result}
	}
	return lists
}

// tasks answers tasks/list with the tasks at all members that the session has used.
func (o oneLists) tasks(m wire.Message) error {
	s, err := o.groupSession()
	if err != nil {
		return err
	}
	var all []group.List
	missing := map[string]string{}
	for _, name := range s.Members {
		c, ok := o.member(name)
		if !ok {
			continue
		}
		ctx, cancel := context.WithTimeout(o.x.ctx(), firstLists)
		result, err := o.ask(ctx, c, s, nil, wire.MethodTasksList)
		cancel()
		switch {
		case err == nil:
			all = append(all, group.List{Member: name, Result: result})
		case !hasNone(err):
			missing[name] = whyNot(err)
		}
	}
	o.x.json(http.StatusOK, wire.ResultResponse(m.ID, without(group.TaskList(all...), missing)))
	return nil
}

// oneModern serves a request of the modern era to a group.
type oneModern struct{ *one }

// post serves a POST: it finds the member that the request is for, or answers for the
// group.
func (o oneModern) post(msgs []wire.Message, batch bool) error {
	x := o.x
	m := msgs[0]
	if batch || m.Kind != wire.Request {
		return serveModern(x, msgs, batch)
	}
	called, m, err := o.searched(m)
	if o.finds || err != nil {
		o.refuses = err
		return serveModern(x, msgs, false)
	}
	t, err := o.target(m)
	if o.extends = wire.OfExtension(m.Method); o.extends && err == nil && t.Member == "" && !isListed(m.Method) {
		t.Member, err = oneLists(o).owner(m)
	}
	if called && err != nil {
		m = msgs[0] // the headers are checked against it
	}
	if err != nil || t.Member == "" {
		o.refuses = err
		return serveModern(x, []wire.Message{m}, false)
	}
	named, _ := bridge.HeaderName(msgs[0])
	if m, err = t.Message(m); err != nil {
		return err
	}
	if err := o.enter(t.Member, []wire.Message{m}, false); err != nil {
		return err
	}
	if err := o.rename(named, m); err != nil {
		return err
	}
	if err := x.permit([]wire.Message{m}); err != nil {
		return err
	}
	return serveModern(x, []wire.Message{m}, false)
}

// rename makes the headers of a request those of a message to a member. named is what the
// client's message names.
func (o oneModern) rename(named string, m wire.Message) error {
	name, ok := bridge.HeaderName(m)
	if !ok {
		return nil
	}
	header := o.x.r.Header.Get(wire.HeaderName)
	if decoded, is := wire.DecodeHeaderValue(header); header != named && (!is || decoded != named) {
		return mismatch(wire.HeaderName, "params")
	}
	o.x.r = o.x.r.Clone(o.x.ctx())
	o.x.r.Header.Set(wire.HeaderName, name)
	return nil
}

// serve serves what concerns all members. served is false for a request for one of them.
func (o oneModern) serve(m modern) (served bool, err error) {
	out := newReply(m.x, m.req)
	switch {
	case o.refuses != nil:
		return true, out.fail(o.refuses)
	case o.finds:
		result, err := oneLists(o).find(m.req.Message, modelOf(m.client().Init))
		if err != nil {
			return true, out.fail(err)
		}
		out.finish(wire.ResultResponse(m.req.ID, bridge.Result(m.req.Method, result, group.Info())), 0)
	case m.req.Method == wire.MethodDiscover:
		greeting, whole, err := oneLists(o).greeting(wire.V20251125)
		if err != nil {
			return true, out.fail(err)
		}
		if !whole { // the client must not keep it
			greeting = append(greeting[:len(greeting)-1], `,"ttlMs":0}`...)
		}
		out.finish(wire.ResultResponse(m.req.ID, bridge.Discover(greeting, m.x.servesTasks())), 0)
	case isListed(m.req.Method):
		client := m.client()
		result, err := oneLists(o).list(m.req.Message, modelOf(client.Init), &client)
		if err != nil {
			return true, out.fail(err)
		}
		out.finish(wire.ResultResponse(m.req.ID, bridge.Result(m.req.Method, result, group.Info())), 0)
	case m.req.Method == wire.MethodListen:
		return true, o.hear(m)
	default:
		return false, nil
	}
	return true, nil
}
