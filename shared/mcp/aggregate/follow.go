package aggregate

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// Follow implements [sessions.Endpoint]. The client gets one stream, joined from those of its sessions
// with the members and with the group. The latter has the group's own answers.
func (g *Group) Follow(ctx context.Context, lastID, sessionID string, until time.Time) (storage.ID, sessions.Stream, error) {
	from, places, err := resumed(lastID)
	if err != nil {
		return "", nil, err
	}
	id, err := g.Host.Open(ctx, g.As, cmp.Or(from, sessionID))
	if err != nil {
		return "", nil, err
	}
	of, _, err := g.Host.Load(ctx, g.As, id)
	if err != nil {
		return id, nil, err
	}
	f := &following{merged: g.merge(ctx, id), places: places, joining: map[string]int{}}
	f.end, f.look = until, g.Look
	err = f.add(g.As, "", id)
	for _, c := range g.joined(of) {
		if err == nil {
			err = storage.IgnoreNotFound(f.member(c))
		}
	}
	if err != nil {
		f.halt()
		return id, nil, err
	}
	return id, f, nil
}

// resumed reads lastID, the event id with which a client comes back. It returns the id of the session,
// "" if lastID names none, and the index of the last event that the client has of each member's stream.
// Errors: those of [storage.ParseEventID].
func resumed(lastID string) (id string, places map[string]storage.Index, err error) {
	places = map[string]storage.Index{}
	id, rest, ok := strings.Cut(lastID, placeNext)
	if !ok {
		if lastID != "" {
			_, err = storage.ParseEventID(lastID) // the id is from the address of one server, so only its form is checked
		}
		return "", places, err
	}
	for place := range strings.SplitSeq(rest, placeNext) {
		member, at, _ := strings.Cut(place, placeMark)
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil || n < 0 {
			return "", nil, storage.BadEventID("index", wire.Clip(lastID))
		}
		places[member] = storage.Index(n)
	}
	return id, places, nil
}

// following is the event stream of an HTTP+SSE client.
type following struct {
	*merged
	places map[string]storage.Index // by member, the index of the last event that the client has; Cursor updates it
	// joining has the members that a message with the method markJoined has announced, but whose session
	// does not exist yet. The value counts the attempts to open the member's stream.
	joining map[string]int
	done    bool
}

// After a message (markJoined) has announced a member, Next tries to open the member's stream, every
// joinEvery and at most mostJoins times. If the program that wrote the message died before it opened
// the session, the client's next POST writes another message.
const (
	joinEvery = 100 * time.Millisecond
	mostJoins = 50
)

// add opens the stream of a session and starts to read it.
func (f *following) add(c sessions.Caller, member string, id storage.ID) error {
	last := ""
	if at, ok := f.places[member]; ok {
		last = storage.EventID{Stream: storage.LegacySSE, Index: at, Nonce: string(id)}.String()
	}
	_, s, err := f.g.Host.At(c).Follow(f.ctx, last, string(id), f.end)
	if err != nil {
		return err
	}
	at, _ := storage.ParseEventID(s.Cursor()) // the cursor of a stream is well formed
	p := &part{member: member, stream: s, index: at.Index}
	f.parts = append(f.parts, p)
	f.read(p)
	return nil
}

func (f *following) member(c sessions.Caller) error {
	if slices.ContainsFunc(f.parts, func(p *part) bool { return p.member == c.Server.Name && !p.ended }) {
		return nil
	}
	return f.add(c, c.Server.Name, sessions.MemberID(f.id, c.Server.Name))
}

func (f *following) Next(ctx context.Context, until time.Time) ([]sessions.Event, error) {
	for !f.done {
		wake := until
		if soon := time.Now().Add(joinEvery); len(f.joining) > 0 && soon.Before(until) {
			wake = soon
		}
		h, some, err := f.wait(ctx, wake)
		if err != nil {
			return nil, err
		}
		var events []sessions.Event
		if some {
			events = f.pass(h, f.Cursor)
			for _, e := range h.events {
				if name := joinedOf(e.Raw); name != "" && h.of.member == "" {
					f.joining[name] = 0
				}
			}
			if f.done = h.done && h.of.member == ""; h.done && !f.done && time.Now().Before(f.end) {
				f.places[h.of.member], h.of.ended = h.of.index, true
			}
		}
		if err := f.join(); err != nil {
			return events, err
		}
		if len(events) > 0 || !time.Now().Before(until) {
			return events, nil
		}
	}
	return nil, nil
}

// join tries to open the streams of the members in joining.
func (f *following) join() error {
	for name := range f.joining {
		if c, ok := f.g.member(name); ok {
			err := f.member(c)
			if errors.Is(err, storage.NotFound) && f.joining[name] < mostJoins {
				f.joining[name]++
				continue
			}
			if err = storage.IgnoreNotFound(err); err != nil {
				return err
			}
		}
		delete(f.joining, name)
	}
	return nil
}

// Cursor implements [sessions.Stream]. It also names a position in the stream of a member whose
// session has ended, because a later session with the member goes on in that stream.
func (f *following) Cursor() string {
	for _, p := range f.parts {
		f.places[p.member] = p.index
	}
	text := string(f.id)
	for _, member := range slices.Sorted(maps.Keys(f.places)) {
		if _, ok := f.g.member(member); ok || member == "" {
			text += placeNext + member + placeMark + strconv.FormatInt(int64(f.places[member]), 10)
		}
	}
	return text
}

func (f *following) Stop(ctx context.Context, sent string) {
	f.halt()
	_, places, err := resumed(sent)
	if err != nil {
		return
	}
	for _, p := range f.parts {
		if at, ok := places[p.member]; ok {
			_, own := p.stream.Of()
			p.stream.Stop(ctx, storage.EventID{Stream: storage.LegacySSE, Index: at, Nonce: string(own)}.String())
		}
	}
}

// Done reports whether the session with the group has ended, or a newer response reads its stream.
func (f *following) Done() bool { return f.done }
