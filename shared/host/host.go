package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Host joins a Store and a Backend: the verbs of a session. It holds nothing
// between calls, so any instance can serve any message. Safe for concurrent use.
type Host struct {
	store   session.Store
	backend Backend
	limits  Limits
	out     Outlet
}

// New makes a Host. Zero limits get their defaults.
func New(store session.Store, backend Backend, limits Limits) *Host {
	return &Host{store: store, backend: backend, limits: limits.withDefaults(), out: Outlet{Store: store}}
}

// WithClients is the same Host for who serves WebSocket clients: it can push to
// them and close their connections.
func (h *Host) WithClients(clients session.Clients) *Host {
	with := *h
	with.out.Clients = clients
	return &with
}

// Limits returns the limits in force.
func (h *Host) Limits() Limits { return h.limits }

// Caller is who calls a verb, and over what. A session is worth nothing to a
// caller that differs in any of these from the one who opened it.
type Caller struct {
	Server    Server
	Tenant    string
	Principal string
	Transport session.Transport
	Conn      string // WebSocket connection events shall also go to, or ""
	EventIDs  bool   // that connection's client wants to be told event ids
	// Credential is what the caller proved itself with; see Identity. A session does
	// not depend on it.
	Credential string
	Props      []byte // see Identity; a session keeps what its caller brought last
}

func (c Caller) box() session.BoxID { return session.BoxFor(c.Tenant, c.Server.Name) }

// Initialize opens a session (MCP 2025-11-25, basic/lifecycle). m must be an
// initialize request. id is "" for a new session, or the session that was opened
// with the connection. With a handshake record for the server and the version
// asked for, the Call is ready at once and no box is touched; otherwise the box
// is asked, and a session whose initialize fails is ended.
//
// Errors: Invalid (params, or initialized already), TooLarge (parameters over
// 64 KiB, an id over 16 KiB), NotFound (id), Unavailable, Busy.
func (h *Host) Initialize(ctx context.Context, c Caller, id session.ID, m wire.Message) (session.Session, *Call, error) {
	version, ok := wire.String(wire.Lookup(m.Params, "protocolVersion"))
	if !ok {
		return session.Session{}, nil, session.Errorf(session.Invalid, "initialize has no params.protocolVersion; send the newest version you speak as a string")
	}
	if err := bounded(m); err != nil {
		return session.Session{}, nil, err
	}
	if len(m.Params) > maxInit {
		return session.Session{}, nil, session.Errorf(session.TooLarge, "the parameters of initialize have %d bytes; send at most %d", len(m.Params), maxInit)
	}
	var record *session.Handshake
	if c.Server.Record {
		rec, err := h.store.Handshake(ctx, session.RecordFor(c.Tenant, c.Server.Digest), wire.Negotiate(version))
		if err != nil && !errors.Is(err, session.NotFound) {
			return session.Session{}, nil, err
		}
		if err == nil {
			record = &rec
		}
	}
	begin := func(s *session.Session) {
		s.State, s.Version, s.Init = session.Created, wire.Negotiate(version), bytes.Clone(m.Params)
		s.Expires = time.Now().Add(h.limits.InitTimeout)
		if record != nil {
			adopt(s, record.Result)
		} else {
			s.Expires = s.Expires.Add(h.limits.StartTime)
		}
	}
	s, err := h.begin(ctx, c, id, begin)
	if err != nil {
		return session.Session{}, nil, err
	}
	if record != nil {
		return s, h.readyCall(wire.ResultResponse(m.ID, record.Result)), nil
	}
	box, err := h.store.Box(ctx, c.box())
	if err != nil {
		return session.Session{}, nil, err
	}
	call, err := h.deliver(ctx, c, s, box, m.Raw, session.Address{Requests: []json.RawMessage{m.ID}, Init: true})
	if err != nil {
		return session.Session{}, nil, err
	}
	return s, call, nil
}

// begin makes a session that is being initialized, of nothing or of one that was
// opened. A repeat of the same initialize is taken: the first may have been lost
// in the middle.
func (h *Host) begin(ctx context.Context, c Caller, id session.ID, begin func(*session.Session)) (session.Session, error) {
	if id == "" {
		s := h.opened(c)
		begin(&s)
		if err := h.store.Create(ctx, s); err != nil {
			return session.Session{}, err
		}
		s.Rev = 1
		return s, nil
	}
	s, _, err := h.Load(ctx, c, id)
	if err != nil {
		return session.Session{}, err
	}
	var wanted session.Session
	begin(&wanted)
	initialized := false
	s, err = h.update(ctx, s, func(s *session.Session) bool {
		again := s.State == session.Created && bytes.Equal(s.Init, wanted.Init)
		if initialized = s.State != session.Opened && !again; initialized || again {
			return false
		}
		s.Digest = c.Server.Digest
		begin(s)
		return true
	})
	if err == nil && initialized {
		err = session.Errorf(session.Invalid, "this session is initialized already; open another connection for another session")
	}
	return s, err
}

// adopt takes over what the server answered to initialize.
func adopt(s *session.Session, result json.RawMessage) {
	if v, ok := wire.String(wire.Lookup(result, "protocolVersion")); ok {
		s.Version = v
	}
	s.Pushes = pushes(result) || wire.Lookup(s.Init, "capabilities", "roots") != nil
}

// pushes says whether a server's capabilities let it send anything that belongs
// to no request.
func pushes(result json.RawMessage) bool {
	caps := func(path ...string) bool {
		v := wire.Lookup(result, append([]string{"capabilities"}, path...)...)
		return v != nil && string(v) != "false" && string(v) != "null"
	}
	return caps("logging") || caps("tools", "listChanged") || caps("prompts", "listChanged") ||
		caps("resources", "listChanged") || caps("resources", "subscribe")
}

// Load returns a session its caller may use, and its box. NotFound if it is not
// there, has ended or expired, or is somebody else's: the four are not told
// apart to the outside.
func (h *Host) Load(ctx context.Context, c Caller, id session.ID) (session.Session, session.Box, error) {
	s, box, err := h.store.Load(ctx, id, c.box())
	if err != nil && !errors.Is(err, session.NotFound) {
		return session.Session{}, session.Box{}, err
	}
	mine := s.Server == c.Server.Name && s.Tenant == c.Tenant && s.Principal == c.Principal && s.Transport == c.Transport
	if err != nil || !mine || s.State == session.Ended {
		return session.Session{}, session.Box{}, session.Errorf(session.NotFound, "there is no such session; send initialize to open one").Because(absence(s, err))
	}
	return s, box, nil
}

// Accept takes what a client sent in one POST or frame: one message, or a batch.
// The Call is nil when nothing is owed a response. Otherwise nothing has been
// accepted yet: see [Call].
//
// Local, without waking a box: ping, notifications/initialized, lists that stand in
// the handshake record, and responses to questions of a box that is gone. A notification reaches an awake box at
// most once and is dropped for a sleeping one, which has nothing in flight that
// it could matter to.
//
// Errors: NotFound (session), Invalid, TooLarge (over [session.MaxBatchEvents] messages, or
// ids of over 16 KiB together), Unavailable, Busy.
func (h *Host) Accept(ctx context.Context, c Caller, id session.ID, msgs []wire.Message, batch bool) (*Call, error) {
	if err := bounded(msgs...); err != nil {
		return nil, err
	}
	s, box, err := h.Load(ctx, c, id)
	if err != nil {
		return nil, err
	}
	if len(msgs) == 1 && msgs[0].Method == wire.MethodPing && msgs[0].Kind == wire.Request {
		return h.readyCall(wire.ResultResponse(msgs[0].ID, json.RawMessage("{}"))), h.touch(ctx, s)
	}
	if s, box, err = h.initialized(ctx, c, s, box); err != nil {
		return nil, err
	}
	if batch && c.Transport != session.HTTP && s.Version > wire.V20250326 {
		return nil, session.Errorf(session.Invalid, "version %s has no batches; send each message by itself", s.Version)
	}
	return h.accept(ctx, c, s, box, msgs, batch)
}

// maxIDs bounds the ids of the requests in one body, in bytes: they stand in a record
// that a store keeps whole.
const maxIDs = 16 << 10

// bounded refuses what could not be ended: whoever finds a box lost writes the ends of
// all requests of a body in one batch.
func bounded(msgs ...wire.Message) error {
	if len(msgs) > session.MaxBatchEvents {
		return session.Errorf(session.TooLarge, "%d messages at once; send at most %d", len(msgs), session.MaxBatchEvents)
	}
	size := 0
	for _, m := range msgs {
		if m.Kind == wire.Request {
			size += len(m.ID)
		}
	}
	if size > maxIDs {
		return session.Errorf(session.TooLarge, "the ids of the requests have %d bytes; use shorter ones, of at most %d together", size, maxIDs)
	}
	return nil
}

// overtaking is how long a message may come before the initialize that was sent
// before it: API Gateway gives no order to the messages of one connection.
const overtaking = 2 * time.Second

// initialized waits for the initialize of a session that was opened with its
// connection. A session of HTTP+SSE goes without: TypeScript's client takes up
// its stream anew when it was cut, and believes to be in the session it had.
func (h *Host) initialized(ctx context.Context, c Caller, s session.Session, box session.Box) (session.Session, session.Box, error) {
	begun := time.Now()
	var err error
	for err == nil && s.State == session.Opened && c.Transport != session.SSE {
		if time.Since(begun) >= overtaking {
			return s, box, session.Errorf(session.Invalid, "the session is not initialized; send initialize first")
		}
		if err = sleepUntil(ctx, time.Now().Add(overtaking/20)); err == nil {
			s, box, err = h.Load(ctx, c, s.ID)
		}
	}
	if err != nil || s.State != session.Opened {
		return s, box, err
	}
	s, err = h.update(ctx, s, func(s *session.Session) bool {
		if s.State != session.Opened {
			return false
		}
		s.State, s.Version, s.Pushes = session.Ready, wire.V20241105, true
		s.Init = json.RawMessage(`{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"unknown","version":""}}`)
		h.extend(s)
		return true
	})
	return s, box, err
}

func (h *Host) accept(ctx context.Context, c Caller, s session.Session, box session.Box, msgs []wire.Message, batch bool) (*Call, error) {
	var rest []wire.Message
	var requests []json.RawMessage
	for _, m := range msgs {
		switch {
		case m.Kind == wire.Response:
			var err error
			if s, err = h.answered(ctx, s, box, m); err != nil {
				return nil, err
			}
			continue
		case m.Kind == wire.Request && m.Method == wire.MethodInitialize:
			return nil, session.Errorf(session.Invalid, "this session is initialized already; send initialize without a session id to open another")
		case m.Method == wire.NotifyInitialized:
			if err := h.ready(ctx, s); err != nil {
				return nil, err
			}
			continue
		case m.Kind == wire.Request:
			requests = append(requests, m.ID)
		}
		rest = append(rest, m)
	}
	if len(rest) == 0 {
		return nil, nil
	}
	s, err := h.remember(ctx, s, rest)
	if err != nil {
		return nil, err
	}
	a := session.Address{Requests: requests}
	if m := rest[0]; !batch && m.Kind == wire.Request {
		result, part, err := h.recorded(ctx, c, s, box, m.Method, m.Params)
		if err != nil {
			return nil, err
		}
		if result != nil {
			return h.readyCall(wire.ResultResponse(m.ID, result)), nil
		}
		a.List = part
	}
	return h.deliver(ctx, c, s, box, joined(rest, batch), a)
}

// joined is the body again, without the messages that were taken out.
func joined(msgs []wire.Message, batch bool) []byte {
	if !batch {
		return msgs[0].Raw
	}
	raws := make([][]byte, len(msgs))
	for i, m := range msgs {
		raws[i] = m.Raw
	}
	return slices.Concat([]byte{'['}, bytes.Join(raws, []byte{','}), []byte{']'})
}

// deliver hands a message over. Of the address only what is of the message is given:
// Requests, Init and List, and the Stream if it has one already.
func (h *Host) deliver(ctx context.Context, c Caller, s session.Session, box session.Box, raw []byte, a session.Address) (*Call, error) {
	return h.hand(ctx, c, s, box, Delivery{Raw: raw, Address: a})
}

// hand is deliver for a delivery of which Raw, Brief and that of the address is given.
func (h *Host) hand(ctx context.Context, c Caller, s session.Session, box session.Box, d Delivery) (*Call, error) {
	a, again := d.Address, s.Served
	if len(a.Requests) > 0 {
		if err := writable(ctx, h.store); err != nil {
			return nil, unexecuted(err)
		}
		var err error
		if s, err = h.update(ctx, s, func(s *session.Session) bool { return noteCaller(s, c, !a.Looks()) }); err != nil {
			return nil, err
		}
	}
	if a.Stream == "" {
		a.Stream = session.NewStreamID()
	}
	a.Session, a.Conn, a.EventIDs, a.Out = s.ID, c.Conn, c.EventIDs, c.Transport == session.SSE
	a.Principal, a.Digest, a.Box, a.Again = c.Principal, session.RecordFor(c.Tenant, s.Digest), c.box(), again
	a.Trace = session.TraceOf(ctx)
	d.Address, d.Client, d.Server = a, s, c.Server.Name
	tender, err := h.backend.Deliver(ctx, d, box)
	if err != nil || len(a.Requests) == 0 {
		return nil, err
	}
	call := &Call{host: h, session: s.ID, stream: d.Stream, tender: tender, pushed: a.Pushed(), begun: time.Now()}
	if d.Brief || c.Transport == session.WebSocket {
		call.duty.Next = call.begun.Add(firstTendBrief)
	}
	return call, nil
}

// firstTendBrief is firstTend for a function that only waits for the request to be
// accepted: its runner says sooner that it has taken it.
const firstTendBrief = 300 * time.Millisecond

// noteCaller notes what a message brings that others do not: that a box is given work, and
// what is known of its caller by now. It says whether that is news.
func noteCaller(s *session.Session, c Caller, work bool) (news bool) {
	if work && !s.Served && !c.Server.InPlace {
		s.Served, news = true, true
	}
	if c.Props != nil && len(c.Props) <= session.MaxProps && !bytes.Equal(s.Props, c.Props) {
		s.Props, news = bytes.Clone(c.Props), true
	}
	return news
}

// ready marks the session as initialized, which is what gives it its long life.
func (h *Host) ready(ctx context.Context, s session.Session) error {
	_, err := h.update(ctx, s, func(s *session.Session) bool {
		if s.State != session.Created {
			return false
		}
		s.State = session.Ready
		h.extend(s)
		return true
	})
	return err
}

// remember keeps what a fresh process of this session has to be told: the log
// level and the subscriptions, as many as the record holds.
func (h *Host) remember(ctx context.Context, s session.Session, msgs []wire.Message) (session.Session, error) {
	kept := func(m wire.Message) bool {
		return m.Kind == wire.Request && (m.Method == wire.MethodSetLevel || m.Method == wire.MethodSubscribe || m.Method == wire.MethodUnsubscribe)
	}
	if !slices.ContainsFunc(msgs, kept) {
		return s, h.touch(ctx, s)
	}
	return h.update(ctx, s, func(s *session.Session) bool {
		for _, m := range msgs {
			if kept(m) {
				noteRequest(s, m)
			}
		}
		h.extend(s)
		return true
	})
}

// Bounds of what a session's record keeps of its client. Drivers keep it whole, and
// every delivery carries it.
const (
	maxInit       = 64 << 10  // bytes of its initialize parameters
	maxLevel      = 64        // bytes; no level of MCP is longer
	maxSubscribed = 500       // resources
	maxURIs       = 128 << 10 // bytes of their URIs together
)

func noteRequest(s *session.Session, m wire.Message) {
	if m.Method == wire.MethodSetLevel {
		if level, ok := wire.String(wire.Lookup(m.Params, "level")); ok && len(level) <= maxLevel {
			s.Level = level
		}
		return
	}
	uri, ok := wire.String(wire.Lookup(m.Params, "uri"))
	if !ok {
		return
	}
	s.Subscribed = slices.DeleteFunc(slices.Clone(s.Subscribed), func(u string) bool { return u == uri })
	size := len(uri)
	for _, other := range s.Subscribed {
		size += len(other)
	}
	if m.Method == wire.MethodSubscribe && len(s.Subscribed) < maxSubscribed && size <= maxURIs {
		s.Subscribed = append(s.Subscribed, uri)
	}
}

// touch extends the life of a session, with a write only when less than half of
// it is left.
func (h *Host) touch(ctx context.Context, s session.Session) error {
	if s.State != session.Ready || time.Until(s.Expires) > h.limits.Life/2 {
		return nil
	}
	_, err := h.update(ctx, s, func(s *session.Session) bool { h.extend(s); return true })
	return err
}

func (h *Host) extend(s *session.Session) {
	s.Used = time.Now()
	if s.State == session.Ready {
		s.Expires = s.Used.Add(h.limits.Life)
	}
}

// update is a compare-and-swap loop on a session record. change returns false to
// leave the record as it is.
func (h *Host) update(ctx context.Context, s session.Session, change func(*session.Session) bool) (session.Session, error) {
	return update(ctx, h.store, s, change)
}

func update(ctx context.Context, store session.Sessions, s session.Session, change func(*session.Session) bool) (session.Session, error) {
	for begun, pause := time.Now(), time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if !change(&s) {
			return s, nil
		}
		err := store.Save(ctx, s)
		if err == nil {
			s.Rev++
			return s, nil
		}
		if !errors.Is(err, session.Conflict) {
			return s, err
		}
		if time.Since(begun) > contended {
			return s, session.Errorf(session.Unavailable, "the session is being changed by too many requests at once; try again")
		}
		if err := sleepUntil(ctx, time.Now().Add(rand.N(pause))); err != nil {
			return s, err
		}
		if s, _, err = store.Load(ctx, s.ID, session.BoxFor(s.Tenant, s.Server)); err != nil {
			return s, err
		}
	}
}

// contended is for how long a change of a session is tried that others come
// between. Each time one of them gets through, so it takes many of them.
const contended = 10 * time.Second

// End ends a session (DELETE). NotFound if it is not there any more. Its process
// is stopped if the box can be told now, and else when it has been idle.
func (h *Host) End(ctx context.Context, c Caller, id session.ID) error {
	s, box, err := h.Load(ctx, c, id)
	if err != nil {
		return err
	}
	if s, err = quit(ctx, h.store, s, session.QuitClient); err != nil {
		return err
	}
	// It has ended, whether the box hears of it now or not.
	_ = h.backend.End(ctx, s, box)
	return nil
}

// tombstoneLife keeps the reason a session ended for an operator to see.
const tombstoneLife = time.Hour

func quit(ctx context.Context, store session.Sessions, s session.Session, why session.Quit) (session.Session, error) {
	return update(ctx, store, s, func(s *session.Session) bool {
		if s.State == session.Ended {
			return false
		}
		s.State, s.Quit, s.Expires = session.Ended, why, time.Now().Add(tombstoneLife)
		return true
	})
}

// unexecuted says of the error that kept a request from being executed that it did.
func unexecuted(err error) error {
	var e *session.Error
	if !errors.As(err, &e) {
		return err
	}
	told := *e
	told.Message = "the request was not executed: " + e.Message
	return &told
}

// absence is why a session is not there for its caller, fit for operators only:
// the store's own words, the [session.Quit] of one that has ended, or that it is not the
// caller's.
func absence(s session.Session, err error) error {
	switch {
	case err != nil:
		return err
	case s.State == session.Ended:
		return s.Quit
	default:
		return errors.New("the session is not the caller's: it was opened by another principal, for another server or over another transport")
	}
}

// writable asks a store, or the one that it wraps.
func writable(ctx context.Context, s session.Store) error {
	for s != nil {
		if w, ok := s.(session.Writable); ok {
			return w.Writable(ctx)
		}
		wrapper, ok := s.(interface{ Unwrap() session.Store })
		if !ok {
			return nil
		}
		s = wrapper.Unwrap()
	}
	return nil
}
