package sessions

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Endpoint is what a transport speaks to on behalf of one caller: one server ([Manager.At]), or a
// group of servers at one address (package aggregate).
//
// A method that gets the id of a session returns NotFound if the caller has no such session.
// A method whose comment names a method of [Manager] also returns the errors of that method.
type Endpoint interface {
	// Caller says for whom the endpoint acts. Its Server names the endpoint.
	Caller() Caller

	// Initialize opens a session as [Manager.Initialize] does, and returns its id.
	Initialize(ctx context.Context, id storage.ID, m wire.Message) (storage.ID, Response, error)
	// Route finds the server for the messages of one POST or WebSocket frame. An error of type
	// *[wire.Error] is the answer to a request for a tool, prompt or resource that no server of the
	// endpoint has.
	Route(ctx context.Context, id storage.ID, msgs []wire.Message, batch bool) (Routed, error)
	// Listen continues a stream after the event with the id lastID, or opens the standalone stream if
	// lastID is "" ([Manager.Listen]). The transport's function until returns when a
	// response with this [Resumable.Hold] will end.
	Listen(ctx context.Context, id storage.ID, lastID string, until func(hold time.Duration) time.Time) (Resumable, error)
	// Again returns a new event id for the same position in the stream as lastID. It is for a client
	// whose Listen has failed: some clients break when they get an id twice.
	Again(lastID string) string
	// Follow opens the event stream of an HTTP+SSE client, and returns the id of its session. The
	// session is the one that the event id lastID names, or else the one with the id sessionID. If both
	// are "", Follow opens a new session. See [Manager.Follow].
	Follow(ctx context.Context, lastID, sessionID string, until time.Time) (storage.ID, Stream, error)
	// Say writes messages to the event stream of an HTTP+SSE client.
	Say(ctx context.Context, id storage.ID, answers ...[]byte) error
	// End ends a session ([Manager.End]).
	End(ctx context.Context, id storage.ID) error

	// Greeting returns the answer to initialize for a client without a session
	// ([Manager.Greeting]). kind is its [Caller.Kind].
	Greeting(ctx context.Context, kind string, client Client) (result json.RawMessage, call *Call, err error)
	// Dispatch returns the servers for a message of a modern client: one for a request, several for
	// a notification or a subscription. An error of type *[wire.Error] is the
	// answer to the request.
	Dispatch(ctx context.Context, kind string, m wire.Message) ([]Dispatched, error)
}

// Routed has the messages of a legacy client with the server that gets them.
type Routed struct {
	Caller   Caller         // the caller at that server, or at the group if the group answers itself
	Session  storage.ID     // the caller's session with that server or group
	Messages []wire.Message // the messages in the form that the server gets
	Batch    bool
	// Accept sends the messages to the server ([Manager.Accept]). The Response is nil if no message
	// needs a response. An error of type *[wire.Error] is the answer to the request.
	Accept func(ctx context.Context) (Response, error)
}

// Dispatched is a message of a modern client with the server that gets it.
type Dispatched struct {
	Caller  Caller       // the caller at that server
	Message wire.Message // the message in the form that the server gets
	// View translates a message of the server for the client: in a group, names of tools get a
	// prefix. nil changes nothing.
	View func(raw []byte) []byte
	// Result, if not nil, returns the result of the request, which then goes to no server.
	Result func(ctx context.Context, client Client) (json.RawMessage, error)
	// Listed, if not nil, asks the server for its tools.
	Listed func(ctx context.Context, client Client) (json.RawMessage, error)
	// Greeting is the server's answer to initialize, if the message is a subscription and the
	// endpoint knows that answer; otherwise nil.
	Greeting json.RawMessage
}

// Event is an event as a client gets it.
type Event struct {
	storage.Event
	// ID is the id that the client sends as Last-Event-ID when it comes back. An Event with an ID
	// and no Raw only gives the client an id.
	ID  string
	Gap bool // events before this one were lost ([Call.Gap])
}

// Stream reads events for one response to a client. Event ids have the form in which the client
// gets them and sends them back. One goroutine uses a Stream.
type Stream interface {
	// Next returns the next events, as [Call.Next] does.
	Next(ctx context.Context, until time.Time) ([]Event, error)
	// Cursor returns an event id that stands for the position after the last event that Next returned.
	Cursor() string
	// Done reports whether nothing more will come, as [Call.Done] does.
	Done() bool
	// Of returns the session of the stream, and the caller.
	Of() (Caller, storage.ID)
	// Stop ends the goroutines that read for a Stream of Listen or Follow. For an HTTP+SSE client, sent
	// is the Cursor after the last event that was sent; Stop records it ([Call.Report]).
	Stop(ctx context.Context, sent string)
}

// Resumable is a Stream whose response may end before the stream does.
type Resumable interface {
	Stream
	// Start returns the id with which the response begins: that of the position before the first event.
	Start() string
	// Close reports whether the response must end now, as [Call.Close] does. cursor is the id to
	// send last, "" if the client has got it already.
	Close() (cursor string, retry time.Duration, now bool)

	// The other methods do what the methods of [Call] with these names do.

	Client() string
	Stream() storage.StreamID
	Stored() bool
	Held() bool
	Boxed() bool
	Hold() time.Duration
	Retry() time.Duration
}

// Response is the stream of the events that answer a client's messages.
type Response interface {
	Resumable
	// Accepted waits until a request is accepted. It is for WebSocket and HTTP+SSE, where the answer is
	// not in the response to the request. Accepted returns an answer that needed no box. For an HTTP+SSE
	// client it has also written that answer to the client's event stream.
	Accepted(ctx context.Context) ([]Event, error)
	// Notice returns the notification that tells a WebSocket client which stream its request has.
	Notice(request json.RawMessage) []byte
}

// At returns the endpoint of one server, c.Server.
func (h *Manager) At(c Caller) Endpoint { return &server{h, c} }

type server struct {
	*Manager
	c Caller
}

func (e *server) Caller() Caller { return e.c }

func (e *server) stream(call *Call, id storage.ID) *clientStream {
	return &clientStream{Call: call, c: &e.c, id: id}
}

func (e *server) Initialize(ctx context.Context, id storage.ID, m wire.Message) (storage.ID, Response, error) {
	s, call, err := e.Manager.Initialize(ctx, e.c, id, m)
	if err != nil {
		return "", nil, err
	}
	return s.ID, e.stream(call, s.ID), nil
}

func (e *server) Route(_ context.Context, id storage.ID, msgs []wire.Message, batch bool) (Routed, error) {
	return Routed{e.c, id, msgs, batch, func(ctx context.Context) (Response, error) {
		call, err := e.Accept(ctx, e.c, id, msgs, batch)
		if err != nil || call == nil {
			return nil, err
		}
		return e.stream(call, id), nil
	}}, nil
}

func (e *server) Listen(ctx context.Context, id storage.ID, lastID string, _ func(time.Duration) time.Time) (Resumable, error) {
	call, err := e.Manager.Listen(ctx, e.c, id, lastID)
	if err != nil {
		return nil, err
	}
	s := e.stream(call, id)
	from, _ := storage.ParseEventID(lastID) // fails only for "", because Listen has read it
	s.from = from.Index
	return s, nil
}

func (*server) Again(lastID string) string {
	at, _ := storage.ParseEventID(lastID) // cannot fail: Listen has checked this id; "" stands for the beginning of the standalone stream
	at.Nonce = storage.NewNonce()
	return at.String()
}

func (e *server) Follow(ctx context.Context, lastID, sessionID string, until time.Time) (id storage.ID, _ Stream, err error) {
	var from *storage.Index
	if lastID != "" {
		at, err := storage.ParseEventID(lastID)
		if err != nil {
			return "", nil, err
		}
		if at.Stream == storage.LegacySSE && at.Nonce != "" {
			id, from = storage.ID(at.Nonce), &at.Index
		}
	}
	if id == "" {
		if id, err = e.Open(ctx, e.c, sessionID); err != nil {
			return "", nil, err
		}
	}
	call, err := e.Manager.Follow(ctx, e.c, id, from, until)
	if err != nil {
		return id, nil, err
	}
	return id, e.stream(call, id), nil
}

func (e *server) Say(ctx context.Context, id storage.ID, answers ...[]byte) error {
	if _, _, err := e.Load(ctx, e.c, id); err != nil || len(answers) == 0 {
		return err
	}
	return e.Manager.Say(ctx, id, answers...)
}

func (e *server) End(ctx context.Context, id storage.ID) error { return e.Manager.End(ctx, e.c, id) }

func (e *server) Greeting(ctx context.Context, kind string, client Client) (json.RawMessage, *Call, error) {
	return e.Manager.Greeting(ctx, e.stateless(kind), client)
}

func (e *server) Dispatch(_ context.Context, kind string, m wire.Message) ([]Dispatched, error) {
	return []Dispatched{{Caller: e.stateless(kind), Message: m}}, nil
}

func (e *server) stateless(kind string) Caller {
	c := e.c
	c.Transport, c.Kind = storage.Modern, kind
	return c
}

// ForClient returns a Response that reads from c. Its method Of returns caller and id.
func (c *Call) ForClient(caller Caller, id storage.ID) Response {
	return &clientStream{Call: c, c: &caller, id: id}
}

// Immediate returns a Response whose only events are raws, which are in no log.
func (h *Manager) Immediate(c Caller, id storage.ID, raws ...[]byte) Response {
	return h.readyCall(raws...).ForClient(c, id)
}

// clientStream is the Response of a Call.
type clientStream struct {
	*Call
	c     *Caller
	id    storage.ID
	from  storage.Index // the last event that the client says it has
	begun bool          // Next has returned without an error
	first storage.Index // index of the first event that Next returned, 0 for none
	ahead []Event       // Accepted has read these, and Next has not returned them yet
}

// Done is true only after Next has returned what Accepted has read ahead.
func (s *clientStream) Done() bool { return len(s.ahead) == 0 && s.Call.Done() }

func (s *clientStream) Next(ctx context.Context, until time.Time) ([]Event, error) {
	if ahead := s.ahead; len(ahead) > 0 {
		s.ahead = nil
		return ahead, nil
	}
	got, err := s.Call.Next(ctx, until)
	if err != nil {
		return nil, err
	}
	s.begun = true
	if len(got) == 0 {
		return nil, nil
	}
	if s.first == 0 {
		s.first = got[0].Index
	}
	events := make([]Event, len(got))
	for i, e := range got {
		events[i].Event = e
		if s.Stored() && len(e.Raw) > 0 {
			events[i].ID = s.ID(e).String()
		}
	}
	events[0].Gap = s.Gap()
	return events, nil
}

func (s *clientStream) Accepted(ctx context.Context) ([]Event, error) {
	events, err := s.Next(ctx, time.Now())
	if err != nil || s.Stored() {
		s.ahead = events
		return nil, err
	}
	if s.c.Transport == storage.SSE {
		for _, e := range events {
			if err := s.manager.Say(ctx, s.id, e.Raw); err != nil {
				return nil, err
			}
		}
	}
	return events, nil
}

func (s *clientStream) Start() string {
	at := s.Call.Cursor()
	if s.first > 0 {
		at.Index = s.first - 1
	}
	// The position of a GET that is still a standby is the one that its client sent.
	if !s.begun || at.Index == 0 {
		at.Index = s.from
	}
	return at.String()
}

func (s *clientStream) Cursor() string { return s.Call.Cursor().String() }

func (s *clientStream) Close() (cursor string, retry time.Duration, now bool) {
	retry, now = s.Call.Close()
	if now {
		cursor = s.Cursor()
	}
	return cursor, retry, now
}

func (s *clientStream) Notice(request json.RawMessage) []byte {
	return EventNotice(s.id, "", storage.EventID{Stream: s.Stream()}, request)
}

func (s *clientStream) Of() (Caller, storage.ID) { return *s.c, s.id }

func (s *clientStream) Stop(ctx context.Context, sent string) {
	if s.follower == nil {
		return
	}
	if at, err := storage.ParseEventID(sent); err == nil {
		_ = s.Report(ctx, at.Index) // if this fails, the next stream repeats the events of this one
	}
}

// ReadSessionID checks the form of a session id that a client sent. An id of more than 64 bytes, or
// with characters that no session id has, is NotFound without a read of the store.
func ReadSessionID(text string) (storage.ID, error) {
	const longest = 64
	odd := strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' || c == '/' || c == '.' })
	if odd || len(text) > longest {
		return "", storage.Errorf(storage.NotFound, "there is no such session; send initialize to open one")
	}
	return storage.ID(text), nil
}
