package aggregate

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Config says what a Group has. Host, As and Members are required.
type Config struct {
	Host *sessions.Manager
	// As is the caller; its Server.Name is the name of the group. Members are the same caller at
	// each server of the group that the caller may use. All have the same Transport.
	As      sessions.Caller
	Members []sessions.Caller

	Plain  bool // a tool, prompt or resource gets no prefix if no other member has one of the same name
	Search bool // the client gets find_tools and call_tool in place of the tools

	// Kept caches which member has which names. If Kept is nil, the Group reads the lists of all
	// members for each name without a prefix.
	Kept *Kept
	// Unserved returns why a server in the servers file is not served, "" if it is not known.
	// Unserved may be nil.
	Unserved func(server string) string
	// Explain returns the text of an error for clients.
	Explain func(error) string
	// Look is the time between two reads of the session's record by a stream.
	Look time.Duration
}

// Group is several servers at one address. It is immutable.
type Group struct {
	Config
	names *group.Names
}

var _ sessions.Endpoint = (*Group)(nil)

// New keeps c, so the caller must not change its Members.
func New(c Config) *Group {
	members := make([]string, len(c.Members))
	for i, m := range c.Members {
		members[i] = m.Server.Name
	}
	return &Group{c, group.NewNames(members)}
}

// Caller implements [sessions.Endpoint].
func (g *Group) Caller() sessions.Caller { return g.As }

func (g *Group) member(name string) (sessions.Caller, bool) {
	i := slices.IndexFunc(g.Members, func(c sessions.Caller) bool { return c.Server.Name == name })
	if i < 0 {
		return sessions.Caller{}, false
	}
	return g.Members[i], true
}

// aside reports whether answers are pushed to clients, over a WebSocket or the stream of HTTP+SSE.
func (g *Group) aside() bool { return g.As.Transport != storage.HTTP }

// join opens the sessions with members. Over HTTP and HTTP+SSE it also writes a mark for each of them
// into the stream [storage.LegacySSE] of the session with the group. A program that sends the client
// an event stream begins to read a member's stream at the member's mark. Over HTTP+SSE the marks are
// written first, because the client gets its answers only on its event stream.
func (g *Group) join(ctx context.Context, id storage.ID, members ...sessions.Caller) error {
	marks := make([][]byte, len(members))
	for i, c := range members {
		marks[i] = wire.NewNotification(markJoined, append(wire.AppendString([]byte(`{"server":`), c.Server.Name), '}'))
	}
	switch g.As.Transport {
	case storage.SSE:
		if err := g.Host.At(g.As).Say(ctx, id, marks...); err != nil {
			return err
		}
		return g.Host.Join(ctx, g.As, id, members...)
	case storage.HTTP:
		if err := g.Host.Join(ctx, g.As, id, members...); err != nil {
			return err
		}
		return g.Host.Say(ctx, id, marks...)
	default:
		return g.Host.Join(ctx, g.As, id, members...)
	}
}

// markJoined is the method of an internal message, a mark, in the stream of a group's session. A mark
// names a member whose stream must be read too (see join). Clients get no marks.
const markJoined = "notifications/dormouse/joined"

// joinedOf returns the member that a mark names, "" if raw is no mark.
func joinedOf(raw []byte) string {
	if method, _ := wire.String(wire.Lookup(raw, "method")); method != markJoined {
		return ""
	}
	name, _ := wire.String(wire.Lookup(raw, "params", "server"))
	return name
}

// joined returns the members with which the client has a session. s is the record of the client's
// session with the group.
func (g *Group) joined(s storage.Session) (all []sessions.Caller) {
	for _, c := range g.Members {
		if slices.Contains(s.Members, c.Server.Name) {
			all = append(all, c)
		}
	}
	return all
}

// An event id of a request stream begins with the name of the member. The ids of the standalone stream
// name a position in the stream of each member that the session uses. The event ids of HTTP+SSE also
// name a position in each stream, after the id of the session:
//
//	everything~7/0jv…             an event of a request stream
//	everything~12;memory~3.k2f…   a position in the standalone stream
//	0jvq…;~5;everything~3         a position in the stream of HTTP+SSE
const (
	placeMark = "~"
	placeNext = ";"
)

func requestEvent(id string) (member, own string, ok bool) {
	member, own, ok = strings.Cut(id, placeMark)
	return member, own, ok && strings.Contains(own, "/") && !strings.Contains(own, placeNext)
}

// view returns the translation of what a member sends into what the client of the group gets.
func (g *Group) view(member string) group.View { return group.View{Member: member, Plain: g.Plain} }

// renamed is the stream of a request at a member, as the client of the group gets it.
type renamed struct {
	sessions.Resumable
	view group.View
}

func (r *renamed) in(events []sessions.Event) []sessions.Event {
	for i := range events {
		if e := &events[i]; len(e.Raw) > 0 {
			e.Raw = r.view.Message(e.Raw)
		}
		events[i].ID = r.place(events[i].ID)
	}
	return events
}

func (r *renamed) place(id string) string {
	if id == "" {
		return ""
	}
	return r.view.Member + placeMark + id
}

func (r *renamed) Next(ctx context.Context, until time.Time) ([]sessions.Event, error) {
	events, err := r.Resumable.Next(ctx, until)
	return r.in(events), err
}

func (r *renamed) Start() string { return r.place(r.Resumable.Start()) }

func (r *renamed) Cursor() string { return r.place(r.Resumable.Cursor()) }

func (r *renamed) Close() (string, time.Duration, bool) {
	cursor, retry, now := r.Resumable.Close()
	return r.place(cursor), retry, now
}

type response struct {
	renamed
	of sessions.Response
	id storage.ID // id of the client's session with the group
}

func (r *response) Accepted(ctx context.Context) ([]sessions.Event, error) {
	events, err := r.of.Accepted(ctx)
	return r.in(events), err
}

func (r *response) Notice(request json.RawMessage) []byte {
	return sessions.EventNotice(r.id, r.view.Member, storage.EventID{Stream: r.Stream()}, request)
}

func forbidden(member string) error {
	return storage.Errorf(storage.Forbidden, "you may not use the server %q; ask its operator for access", member)
}

func noMethod(method string) error {
	return &wire.Error{Code: wire.CodeMethodNotFound, Message: "there is no method " + wire.Clip(method) + " at the address of several servers"}
}
