package aggregate

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// A handshake record in the store keeps the lists that a member has given. The lists of a group come
// from these records. The group asks a member if no record has its list, or if the record may be out of
// date and the member's box is awake. A list wakes no server that has been listed before.
// When that server starts later and has another list, the client gets list_changed.

// firstLists is how long a list waits for the members that have to be asked. A member that
// has not answered in time is left out, or listed as it last was.
const firstLists = 20 * time.Second

// metaUnavailable is a key in the _meta of a list. Its object maps the servers that could not be asked
// to the reasons.
const metaUnavailable = "dormouse/unavailable"

func isListed(method string) bool {
	_, ok := wire.ListOf(method)
	return ok || method == group.MethodSkillsList
}

// known returns the members' lists that the handshake records have. The records keep no lists of
// skills, so each member that declares skills has to be asked for them.
func (g *Group) known(ctx context.Context, method string, s storage.Session) ([]sessions.Known, error) {
	if method != group.MethodSkillsList {
		return g.Host.Lists(ctx, s, g.Members, method)
	}
	known, err := g.greetings(ctx, s.Version, declared(s.Init))
	some := false
	for i, k := range known {
		if k.Result != nil && !group.HasSkills(k.Result) {
			known[i] = sessions.Known{Result: json.RawMessage("{}"), Fresh: true}
			continue
		}
		known[i], some = sessions.Known{Up: true}, true
	}
	if err == nil && !some {
		err = noMethod(method)
	}
	return known, err
}

// list returns the result of a list method, or of a call of find_tools. client is nil for a legacy client.
func (g *Group) list(ctx context.Context, m wire.Message, s storage.Session, client *sessions.Client) (json.RawMessage, error) {
	switch {
	case m.Method == wire.MethodToolsCall:
		return g.find(ctx, m, s)
	case g.Search && m.Method == wire.MethodToolsList:
		return searchTools(), nil
	}
	entries, missing, err := g.entriesFor(ctx, m.Method, s, client, true)
	if err != nil {
		return nil, err
	}
	g.confirm(m.Method, s, entries)
	entries, next, err := g.page(entries, m.Params)
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
	return withUnavailable(result, missing), nil
}

// withUnavailable adds [metaUnavailable] to list: the members that could not be asked, with the reasons.
func withUnavailable(list json.RawMessage, missing map[string]string) json.RawMessage {
	meta, err := json.Marshal(map[string]map[string]string{metaUnavailable: missing})
	if len(missing) == 0 || err != nil { // err is always nil for a map of strings
		return list
	}
	return append(append(append(list[:len(list)-1], `,"_meta":`...), meta...), '}')
}

// pageSpare is how many bytes of a message with a page are for everything but the entries.
const pageSpare = 16 << 10

// page returns the entries of one page of a list, and the cursor of the next one, "" for none.
// Lists have pages over WebSocket only, where messages are bounded. A cursor is the number of
// the entries before its page.
func (g *Group) page(entries []group.Entry, params json.RawMessage) (page []group.Entry, next string, err error) {
	if g.As.Transport != storage.WebSocket {
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
		if size += len(e.Raw) + 1; size > storage.MaxPost-pageSpare && i > 0 {
			return entries[from : from+i], strconv.Itoa(from + i), nil
		}
	}
	return entries[from:], "", nil
}

// model returns the client's session with the group, by its id. For a modern client, id is "", and
// model returns a made-up session with the capabilities that a process sees of modern clients.
func (g *Group) model(ctx context.Context, id storage.ID) (storage.Session, error) {
	if id != "" {
		return g.Host.Session(ctx, g.As, id)
	}
	return modelOf(bridge.Superset(nil)), nil
}

// modelOf returns a made-up session of a modern client, with the fields on which lists depend.
func modelOf(init json.RawMessage) storage.Session {
	return storage.Session{Transport: storage.Modern, Version: wire.V20251125, Init: init}
}

// entriesFor returns the entries of all members for a list method, and the members that could not be
// asked, with the reason for each. If wakes is false, it leaves out sleeping members whose list no
// record has.
func (g *Group) entriesFor(ctx context.Context, method string, s storage.Session, client *sessions.Client, wakes bool) ([]group.Entry, map[string]string, error) {
	known, err := g.known(ctx, method, s)
	if err != nil {
		return nil, nil, err
	}
	if s.Transport == storage.Modern && client == nil {
		client = &sessions.Client{Init: s.Init}
	}
	ctx, cancel := context.WithTimeout(ctx, firstLists)
	defer cancel()
	lists := make([]group.List, len(g.Members))
	failed := make([]error, len(g.Members))
	var ask []int
	var strangers []sessions.Caller
	for i, c := range g.Members {
		lists[i] = group.List{Member: c.Server.Name, Result: known[i].Result}
		if known[i].Fresh || known[i].Result != nil && !known[i].Up {
			continue
		}
		if known[i].Result == nil && !known[i].Up {
			if lists[i].Result, err = g.Host.Borrow(ctx, s, c, method); err != nil {
				return nil, nil, err
			}
		}
		if !known[i].Up && (lists[i].Result != nil || !wakes) {
			continue
		}
		if ask = append(ask, i); client == nil && !g.aside() && !slices.Contains(s.Members, c.Server.Name) {
			strangers = append(strangers, c)
		}
	}
	if len(strangers) > 1 { // open their sessions with one write of the group's session; g.begin would need one write for each
		if err := g.join(ctx, s.ID, strangers...); err != nil {
			return nil, nil, err
		}
	}
	var asks sync.WaitGroup
	for _, i := range ask {
		asks.Go(func() {
			result, err := g.ask(ctx, g.Members[i], s, client, method)
			if err == nil || hasNone(err) {
				lists[i].Result = result
			} else {
				failed[i] = err
			}
		})
	}
	asks.Wait()
	if method == wire.MethodToolsList && s.Transport == storage.Modern {
		if err := g.learn(ctx, lists); err != nil {
			return nil, nil, err
		}
	}
	missing := map[string]string{}
	for i, err := range failed {
		if err == nil {
			continue
		}
		missing[lists[i].Member] = g.whyNot(err)
		if lists[i].Result != nil {
			missing[lists[i].Member] += "; this is its last known list"
		}
	}
	return g.names.Merge(method, g.Plain, lists...), missing, nil
}

// learn passes the [bridge.ToolNotes] of the members' lists to [sessions.Manager.Learn]. Cost: a read for
// each member that has notes, and a write if they are new.
func (g *Group) learn(ctx context.Context, lists []group.List) error {
	for i, l := range lists {
		notes := bridge.ToolNotes(l.Result)
		if notes == nil {
			continue
		}
		c := g.Members[i]
		c.Transport = storage.Modern
		if err := g.Host.Learn(ctx, c, nil, notes); err != nil {
			return err
		}
	}
	return nil
}

// hasNone reports whether an error of a member means that it does not have the list method.
func hasNone(err error) bool {
	rpc, ok := errors.AsType[*wire.Error](err)
	return ok && rpc.Code == wire.CodeMethodNotFound
}

// whyNot returns the reason why a member could not be asked for a list.
func (g *Group) whyNot(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "it has not answered within " + firstLists.String() + "; ask for the list again"
	}
	if rpc, ok := errors.AsType[*wire.Error](err); ok {
		return rpc.Message
	}
	return g.Explain(err)
}

// ask gets a list from a member, page by page. It stops at a list that never ends ([wire.Pages]) and
// returns what it has read. An error of type *[wire.Error] is the member's answer.
func (g *Group) ask(ctx context.Context, c sessions.Caller, s storage.Session, client *sessions.Client, method string) (json.RawMessage, error) {
	var params json.RawMessage
	var pages []json.RawMessage
	var cursors wire.Pages
	until, _ := ctx.Deadline()
	for {
		call, err := g.begin(ctx, c, s, client, method, params)
		if err != nil {
			return nil, err
		}
		page, err := answerOf(ctx, call, until)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
		next, err := cursors.Next(page)
		if err != nil || next == nil {
			return group.Joined(method, pages...), nil
		}
		params = append(append([]byte(`{"cursor":`), next...), '}')
	}
}

// answerOf returns the result of a call. It returns DeadlineExceeded if there is no result by the
// deadline. An error of type *[wire.Error] is the member's answer.
func answerOf(ctx context.Context, call *sessions.Call, deadline time.Time) (json.RawMessage, error) {
	for {
		events, err := call.Next(ctx, deadline)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if wire.Lookup(e.Raw, "method") != nil {
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
			return nil, &wire.Error{Code: wire.CodeInvalidParams, Message: "the call has ended and its result is deleted; send the request again"}
		}
	}
}

// begin sends a request to a member. It uses the client's session with the member, and
// [sessions.Manager.Send] for a modern client.
func (g *Group) begin(ctx context.Context, c sessions.Caller, s storage.Session, client *sessions.Client, method string, params json.RawMessage) (*sessions.Call, error) {
	h := g.Host
	pinned := func(client sessions.Client) (*sessions.Call, error) {
		c.Transport, c.Conn = storage.Modern, ""
		call, _, err := h.Send(ctx, c, client, method, params)
		return call, err
	}
	if client != nil {
		return pinned(*client)
	}
	// Several lists may be asked for at once in one session, so each request has its own id.
	m, err := wire.Parse(wire.NewRequest(wire.AppendString(nil, "dormouse-"+storage.NewNonce()), method, params))
	if err != nil {
		return nil, err
	}
	id := sessions.MemberID(s.ID, c.Server.Name)
	if g.aside() { // Accept would push the answer to the client
		call, err := h.Ask(ctx, c, id, m)
		if errors.Is(err, storage.NotFound) && isListed(method) {
			// Do not open a session only for a list: nothing would read its stream.
			client := declared(s.Init)
			c.Kind = client.Kind()
			return pinned(sessions.Client{Init: client.Init()})
		}
		return call, err
	}
	call, err := h.Accept(ctx, c, id, []wire.Message{m}, false)
	if errors.Is(err, storage.NotFound) {
		if err = g.join(ctx, s.ID, c); err == nil {
			call, err = h.Accept(ctx, c, id, []wire.Message{m}, false)
		}
	}
	return call, err
}
