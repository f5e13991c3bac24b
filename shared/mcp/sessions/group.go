package sessions

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A group is several servers, its members, at one address. A client has one session with the group,
// and behind it one session with each member that it uses. The id of a session with a member is
// computed from the id of the group's session.

// MemberID returns the id of the session that a session of a group has with a member.
func MemberID(of storage.ID, member string) storage.ID {
	return storage.ID(hashOf(20, fmt.Appendf(nil, "member %q %q", of, member)))
}

// hashOf returns the first size bytes of a SHA-256 in base 32, for computed ids.
func hashOf(size int, text []byte) string {
	sum := sha256.Sum256(text)
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:size]))
}

// Greet opens a session with a group. It answers initialize with the result of the function answer
// for the negotiated version, and asks no server. c.Server names the group. id is "", or the id of
// the session that the client's connection has opened.
//
// Errors: those of [Manager.Initialize] and of the function answer.
func (h *Manager) Greet(ctx context.Context, c Caller, id storage.ID, m wire.Message, answer func(version string) (json.RawMessage, error)) (storage.Session, *Call, error) {
	version, err := initializable(m)
	if err != nil {
		return storage.Session{}, nil, err
	}
	version = wire.Negotiate(version)
	result, err := answer(version)
	if err != nil {
		return storage.Session{}, nil, err
	}
	fresh := id == ""
	if fresh {
		id = storage.NewID()
	}
	u := &use{manager: h, caller: c}
	err = u.begin(ctx, id, fresh, func(s *storage.Session) {
		s.State, s.Version, s.Init, s.Pushes = storage.Created, version, bytes.Clone(m.Params), true
		s.Expires = time.Now().Add(h.limits.InitTimeout)
	})
	if err != nil {
		return storage.Session{}, nil, err
	}
	return u.session, h.readyCall(wire.ResultResponse(m.ID, result)), nil
}

// Session returns the group's session with this id, and makes it Ready. If a WebSocket message has
// arrived before the session's initialize, Session waits for the initialize, as [Manager.Accept] does.
//
// Errors: NotFound, Invalid (it is not initialized), Unavailable.
func (h *Manager) Session(ctx context.Context, of Caller, id storage.ID) (storage.Session, error) {
	u, err := h.use(ctx, of, id)
	if err == nil {
		err = u.started(ctx)
	}
	if err != nil {
		return storage.Session{}, err
	}
	return u.session, nil
}

// started waits for the session's initialize, and makes the session Ready.
func (u *use) started(ctx context.Context) error {
	if err := u.initialized(ctx); err != nil {
		return err
	}
	return u.ready(ctx)
}

// Join opens a session with each of members for the group's session with this id. members must not
// be empty. The members' sessions get the initialize and the log level of the group's session. If an
// operator has ended a member's session, Join opens it anew. Join also extends the life of the
// group's session. Cost: one read and a write, and a write for each member.
//
// Errors: those of [Manager.Session].
func (h *Manager) Join(ctx context.Context, of Caller, id storage.ID, members ...Caller) error {
	group, err := h.use(ctx, of, id)
	if err == nil {
		err = group.started(ctx)
	}
	if err != nil {
		return err
	}
	conns := group.session.Conns
	errs := make([]error, len(members))
	var opens sync.WaitGroup
	for i, c := range members[1:] {
		opens.Go(func() { errs[1+i] = group.openMember(ctx, c) })
	}
	errs[0] = group.openMember(ctx, members[0])
	opens.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	err = group.update(ctx, func(g *storage.Session) bool {
		had, old := true, g.Expires.Before(time.Now().Add(h.limits.Life))
		for _, c := range members {
			if !slices.Contains(g.Members, c.Server.Name) {
				had, g.Members = false, append(slices.Clone(g.Members), c.Server.Name)
			}
		}
		if old {
			h.limits.extend(g)
		}
		return !had || old
	})
	if err != nil || slices.Equal(group.session.Conns, conns) {
		return err
	}
	// The client has opened or closed a connection after the group's session was read. Connect and
	// Disconnect did not know these members yet, so change their sessions here.
	for _, c := range members {
		member, err := h.use(ctx, c, MemberID(id, c.Server.Name))
		if err == nil {
			err = member.update(ctx, func(s *storage.Session) bool {
				s.Conns = group.session.Conns
				return true
			})
		}
		if storage.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// openMember stores a session with the member that c calls, for the group's session u.session. It
// does not change u.
func (u *use) openMember(ctx context.Context, c Caller) error {
	h, group := u.manager, u.session
	s := c.opened(MemberID(group.ID, c.Server.Name), h.limits)
	s.State, s.Version, s.Init, s.Level, s.Pushes = storage.Ready, group.Version, group.Init, group.Level, true
	s.Group, s.Conns = group.ID, group.Conns
	if s.Props == nil {
		s.Props = group.Props // c may come from the record of a WebSocket connection, which has no Props
	}
	h.limits.extend(&s)
	err := h.store.Create(ctx, s)
	if errors.Is(err, storage.Conflict) {
		err = reopen(ctx, h.store, s)
	}
	return err
}

// Joins returns a Call that reads the messages of [Manager.Say] for the group's session with this id,
// from the first one on.
func (h *Manager) Joins(id storage.ID) *Call {
	return &Call{manager: h, session: id, stream: storage.LegacySSE, begun: time.Now()}
}

// Ask sends a request of the group itself to a member. The answer is not pushed to the client.
// c is the caller at the member, and id its session there.
//
// Errors: NotFound (session), Unavailable, Busy.
func (h *Manager) Ask(ctx context.Context, c Caller, id storage.ID, m wire.Message) (*Call, error) {
	u, err := h.use(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return u.aside(ctx, m)
}

// aside delivers a request whose answer is not pushed to the client.
func (u *use) aside(ctx context.Context, m wire.Message) (*Call, error) {
	quiet := *u
	quiet.caller.Transport, quiet.caller.Conn = storage.HTTP, ""
	return quiet.deliver(ctx, Delivery{Raw: m.Raw, Address: storage.Address{Requests: []json.RawMessage{m.ID}, Shown: shownTo(quiet.caller, toolLists([]wire.Message{m})...)}})
}

// reopen replaces the record of a session by s if the session has ended.
func reopen(ctx context.Context, store storage.Sessions, s storage.Session) error {
	_, err := amend(ctx, store, s.ID, func(was *storage.Session) bool {
		if was.State != storage.Ended {
			return false
		}
		s.Rev, s.Primary, s.Delivered = was.Rev, was.Primary, was.Delivered // an HTTP+SSE client goes on in the same stream
		*was = s.Clone()
		return true
	})
	return err
}

// Known is an answer of a server, as far as the handshake records have it.
type Known struct {
	Result json.RawMessage // of initialize or of a request for a list; nil if no record has it
	Fresh  bool            // a process of the server would still answer with Result
	Up     bool            // the server can be asked without starting a box: its box is awake, or it has none
}

// Greetings returns the members' answers to initialize, in the order of members, as far as the
// handshake records have them. Cost: one read for all.
func (h *Manager) Greetings(ctx context.Context, members []Caller, version string) ([]Known, error) {
	keys := make([]storage.RecordKey, len(members))
	for i, c := range members {
		keys[i] = storage.RecordKey{Digest: storage.RecordFor(c.Tenant, c.Server.Digest), Version: version}
	}
	found, err := h.store.Recorded(ctx, keys)
	if err != nil {
		return nil, err
	}
	all := make([]Known, len(members))
	for i, c := range members {
		if c.Server.Record {
			all[i] = Known{Result: offered(c.Server.Pin, found[i].Handshake.Result), Fresh: true}
		}
	}
	return all, nil
}

// Lists returns the members' answers to the list method, in the order of members. The lists are those
// for clients like that of s: only Version, Init and Transport of s count. If a record has no list
// for clients like that of s, Lists returns the list that [Manager.Borrow] has kept. The list is
// empty for a member whose answer to initialize declares no lists of this kind. Lists also extends
// the life of s, unless s is modern: a modern s is made up and not stored.
//
// Cost: one read for up to 25 members, and one for each member with a [Server.Pin].
func (h *Manager) Lists(ctx context.Context, s storage.Session, members []Caller, method string) ([]Known, error) {
	group := &use{manager: h, session: s}
	if err := group.touch(ctx); err != nil {
		return nil, err
	}
	const each = 3
	keys := make([]storage.RecordKey, 0, each*len(members))
	for _, c := range members {
		record := storage.RecordFor(c.Tenant, c.Server.Digest)
		part, _ := listPart(memberOf(s, c), c, method, nil)
		keys = append(keys, storage.RecordKey{Digest: record, Version: part, Box: c.box("")}, storage.RecordKey{Digest: record, Version: lastPart(s, c, method)},
			storage.RecordKey{Digest: record, Version: s.Version})
	}
	found, err := h.store.Recorded(ctx, keys)
	if err != nil {
		return nil, err
	}
	all := make([]Known, len(members))
	for i, c := range members {
		exact, last, greeting := found[each*i], found[each*i+1].Handshake.Result, found[each*i+2].Handshake.Result
		k := Known{Up: c.Server.InPlace || exact.Box.State == storage.Awake}
		var kept keptList
		if exact.Handshake.Result != nil && json.Unmarshal(exact.Handshake.Result, &kept) == nil {
			k.Result, k.Fresh = kept.List, kept.holds(c.Server, method, exact.Box)
		} else if c.Server.Record && greeting != nil && wire.Lookup(greeting, "capabilities", kindOf(method)) == nil {
			k.Result, k.Fresh = json.RawMessage("{}"), true
		} else if c.Server.Record && !c.Server.OwnLists {
			k.Result = last
		}
		all[i] = k
	}
	failed := make([]error, len(members))
	var reads sync.WaitGroup
	for i, c := range members {
		show := func() { all[i].Result, failed[i] = group.forClient(ctx, c, method, all[i].Result) }
		if c.Server.Pin != nil {
			reads.Go(show)
		} else {
			show()
		}
	}
	reads.Wait()
	return all, errors.Join(failed...)
}

// forClient returns a list without the tools that the caller does not see, and for legacy clients
// without the JSON fields that only modern clients know.
func (u *use) forClient(ctx context.Context, c Caller, method string, list json.RawMessage) (json.RawMessage, error) {
	if list == nil {
		return nil, nil
	}
	if method == wire.MethodToolsList {
		var err error
		if list, err = c.visible(ctx, u.manager.parts.Held, list); err != nil {
			return nil, err
		}
	}
	if u.session.Transport != storage.Modern {
		list = plainList(list)
	}
	return list, nil
}

// memberOf makes the session with a member, c.Server, out of s, the session with the group. Only the fields
// on which lists depend are right.
func memberOf(s storage.Session, c Caller) storage.Session {
	s.Digest, s.Tenant, s.Principal, s.Served = c.Server.Digest, c.Tenant, c.Principal, false
	return s
}

// lastPart returns the key, within a server's handshake record, of the list that Borrow keeps.
func lastPart(s storage.Session, c Caller, method string) string {
	return "group " + method + " " + c.Server.whose(memberOf(s, c), method)
}

// Borrow returns the newest list in a member's handshake record that this principal may get, nil if there
// is none. The list may be for a client with other capabilities or another protocol version. Borrow keeps
// it for [Manager.Lists].
//
// Errors: Unavailable.
func (h *Manager) Borrow(ctx context.Context, s storage.Session, c Caller, method string) (json.RawMessage, error) {
	if !c.Server.Record || c.Server.OwnLists {
		return nil, nil
	}
	record, now := storage.RecordFor(c.Tenant, c.Server.Digest), time.Now()
	parts, err := h.store.ListHandshakes(ctx, record, method+" ")
	if err != nil {
		return nil, err
	}
	whose := c.Server.whose(memberOf(s, c), method)
	var list json.RawMessage
	var newest time.Time
	for _, p := range parts {
		var kept keptList
		if strings.HasSuffix(p.Version, " "+whose) && p.Taken.After(newest) && json.Unmarshal(p.Result, &kept) == nil {
			list, newest = kept.List, p.Taken
		}
	}
	if list == nil {
		return nil, nil
	}
	err = h.store.SaveHandshake(ctx, storage.Handshake{Digest: record, Version: lastPart(s, c, method), Result: list, Taken: now, Expires: now.Add(storage.HandshakeLife)})
	if err != nil {
		return nil, err
	}
	u := &use{manager: h, session: s}
	return u.forClient(ctx, c, method, list)
}

// SetLevel records the level of m, a logging/setLevel, in the group's session with this id and in
// the members' sessions. SetLevel sends m to the members whose box is awake, and does not wait for
// their answers.
//
// Errors: NotFound, Unavailable.
func (h *Manager) SetLevel(ctx context.Context, of Caller, id storage.ID, members []Caller, m wire.Message) error {
	note := func(s *storage.Session) bool {
		was := s.Level
		noteRequest(s, m)
		return s.Level != was
	}
	group, err := h.use(ctx, of, id)
	if err == nil {
		err = group.update(ctx, note)
	}
	for _, c := range members {
		if err != nil {
			return err
		}
		if !slices.Contains(group.session.Members, c.Server.Name) {
			continue
		}
		var member *use
		if member, err = h.use(ctx, c, MemberID(id, c.Server.Name)); errors.Is(err, storage.NotFound) {
			err = nil
			continue
		}
		if err == nil {
			err = member.update(ctx, note)
		}
		if err == nil && member.box.State == storage.Awake {
			_, err = member.aside(ctx, m)
		}
	}
	return err
}
