package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Host joins a Store and a Backend: the verbs of a session. It holds nothing
// between calls, so any instance can serve any message. Safe for concurrent use.
type Host struct {
	store   Store
	backend Backend
	limits  Limits
}

// NewHost makes a Host. Zero limits get their defaults.
func NewHost(store Store, backend Backend, limits Limits) *Host {
	return &Host{store: store, backend: backend, limits: limits.withDefaults()}
}

// Limits returns the limits in force.
func (h *Host) Limits() Limits { return h.limits }

// Caller is who calls a verb, and over what. A session is worth nothing to a
// caller that differs in any of these from the one who opened it.
type Caller struct {
	Server    Server
	Tenant    string
	Principal string
	Transport Transport
	Conn      string // WebSocket connection events shall also go to, or ""
}

func (c Caller) box() BoxID { return BoxFor(c.Tenant, c.Server.Name) }

// Initialize opens a session (MCP 2025-11-25, basic/lifecycle). m must be an
// initialize request. With a handshake record for the server and the version
// asked for, the Call is ready at once and no box is touched; otherwise the box
// is asked, and a session whose initialize fails is ended.
//
// Errors: Invalid (params), Unavailable, Busy.
func (h *Host) Initialize(ctx context.Context, c Caller, m wire.Message) (Session, *Call, error) {
	version, ok := wire.String(wire.Lookup(m.Params, "protocolVersion"))
	if !ok {
		return Session{}, nil, Errorf(Invalid, "initialize has no params.protocolVersion; send the newest version you speak as a string")
	}
	now := time.Now()
	s := Session{
		ID: NewID(), Server: c.Server.Name, Digest: c.Server.Digest, Tenant: c.Tenant, Principal: c.Principal,
		Transport: c.Transport, State: Created, Version: wire.Negotiate(version), Init: bytes.Clone(m.Params),
		Created: now, Used: now, Expires: now.Add(h.limits.InitTimeout),
	}
	if c.Server.Record {
		rec, err := h.store.Handshake(ctx, s.Digest, s.Version)
		if err == nil {
			s.settle(rec.Result)
			if err := h.store.Create(ctx, s); err != nil {
				return Session{}, nil, err
			}
			return s, h.readyCall(wire.ResultResponse(m.ID, rec.Result)), nil
		}
		if !errors.Is(err, NotFound) {
			return Session{}, nil, err
		}
	}
	s.Expires = s.Expires.Add(h.limits.StartTime)
	if err := h.store.Create(ctx, s); err != nil {
		return Session{}, nil, err
	}
	s.Rev = 1
	box, err := h.store.Box(ctx, c.box())
	if err != nil {
		return Session{}, nil, err
	}
	call, err := h.deliver(ctx, c, s, box, m.Raw, []json.RawMessage{m.ID})
	if err != nil {
		return Session{}, nil, err
	}
	call.initialize = true
	return s, call, nil
}

// settle takes over what the server answered to initialize.
func (s *Session) settle(result json.RawMessage) {
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
func (h *Host) Load(ctx context.Context, c Caller, id ID) (Session, Box, error) {
	s, box, err := h.store.Load(ctx, id, c.box())
	if err != nil && !errors.Is(err, NotFound) {
		return Session{}, Box{}, err
	}
	mine := s.Server == c.Server.Name && s.Tenant == c.Tenant && s.Principal == c.Principal && s.Transport == c.Transport
	if err != nil || !mine || s.State == Ended {
		return Session{}, Box{}, Errorf(NotFound, "there is no such session; send initialize to open one")
	}
	return s, box, nil
}

// Accept takes what a client sent in one POST or frame: one message, or a batch.
// The Call is nil when nothing is owed a response. Otherwise nothing has been
// accepted yet: see [Call].
//
// Local, without waking a box: ping, notifications/initialized, and responses
// to questions of a box that is gone. A notification reaches an awake box at
// most once and is dropped for a sleeping one, which has nothing in flight that
// it could matter to.
//
// Errors: NotFound (session), Invalid, TooLarge, Unavailable, Busy.
func (h *Host) Accept(ctx context.Context, c Caller, id ID, msgs []wire.Message, batch bool) (*Call, error) {
	s, box, err := h.Load(ctx, c, id)
	if err != nil {
		return nil, err
	}
	return h.accept(ctx, c, s, box, msgs, batch)
}

func (h *Host) accept(ctx context.Context, c Caller, s Session, box Box, msgs []wire.Message, batch bool) (*Call, error) {
	if len(msgs) == 1 && msgs[0].Method == wire.MethodPing && msgs[0].Kind == wire.Request {
		return h.readyCall(wire.ResultResponse(msgs[0].ID, json.RawMessage("{}"))), h.touch(ctx, s)
	}
	var rest []wire.Message
	var requests []json.RawMessage
	for _, m := range msgs {
		switch {
		case m.Kind == wire.Response:
			if err := h.answer(ctx, s, box, m); err != nil {
				return nil, err
			}
			continue
		case m.Kind == wire.Request && m.Method == wire.MethodInitialize:
			return nil, Errorf(Invalid, "this session is initialized already; send initialize without a session id to open another")
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
	return h.deliver(ctx, c, s, box, joined(rest, batch), requests)
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

func (h *Host) deliver(ctx context.Context, c Caller, s Session, box Box, raw []byte, requests []json.RawMessage) (*Call, error) {
	again := s.Served
	if len(requests) > 0 && !again {
		var err error
		if s, err = h.update(ctx, s, func(s *Session) bool {
			first := !s.Served
			s.Served = true
			return first
		}); err != nil {
			return nil, err
		}
	}
	d := Delivery{
		Address: Address{
			Session: s.ID, Stream: NewStreamID(), Requests: requests, Conn: c.Conn,
			Principal: c.Principal, Digest: s.Digest, Box: c.box(), Again: again,
		},
		Client: s, Server: c.Server.Name, Raw: raw,
	}
	tender, err := h.backend.Deliver(ctx, d, box)
	if err != nil || len(requests) == 0 {
		return nil, err
	}
	return &Call{host: h, session: s.ID, stream: d.Stream, tender: tender, begun: time.Now()}, nil
}

// ready marks the session as initialized, which is what gives it its long life.
func (h *Host) ready(ctx context.Context, s Session) error {
	_, err := h.update(ctx, s, func(s *Session) bool {
		if s.State != Created {
			return false
		}
		s.State = Ready
		h.extend(s)
		return true
	})
	return err
}

// remember keeps what a fresh process of this session has to be told: the log
// level and the subscriptions.
func (h *Host) remember(ctx context.Context, s Session, msgs []wire.Message) (Session, error) {
	kept := func(m wire.Message) bool {
		return m.Kind == wire.Request && (m.Method == wire.MethodSetLevel || m.Method == wire.MethodSubscribe || m.Method == wire.MethodUnsubscribe)
	}
	if !slices.ContainsFunc(msgs, kept) {
		return s, h.touch(ctx, s)
	}
	return h.update(ctx, s, func(s *Session) bool {
		for _, m := range msgs {
			if kept(m) {
				s.note(m)
			}
		}
		h.extend(s)
		return true
	})
}

// maxSubscribed bounds the session record.
const maxSubscribed = 500

func (s *Session) note(m wire.Message) {
	if m.Method == wire.MethodSetLevel {
		s.Level, _ = wire.String(wire.Lookup(m.Params, "level"))
		return
	}
	uri, ok := wire.String(wire.Lookup(m.Params, "uri"))
	if !ok {
		return
	}
	s.Subscribed = slices.DeleteFunc(slices.Clone(s.Subscribed), func(u string) bool { return u == uri })
	if m.Method == wire.MethodSubscribe && len(s.Subscribed) < maxSubscribed {
		s.Subscribed = append(s.Subscribed, uri)
	}
}

// touch extends the life of a session, with a write only when less than half of
// it is left.
func (h *Host) touch(ctx context.Context, s Session) error {
	if s.State != Ready || time.Until(s.Expires) > h.limits.Life/2 {
		return nil
	}
	_, err := h.update(ctx, s, func(s *Session) bool { h.extend(s); return true })
	return err
}

func (h *Host) extend(s *Session) {
	s.Used = time.Now()
	if s.State == Ready {
		s.Expires = s.Used.Add(h.limits.Life)
	}
}

// update is a compare-and-swap loop on a session record. change returns false to
// leave the record as it is.
func (h *Host) update(ctx context.Context, s Session, change func(*Session) bool) (Session, error) {
	for range 10 {
		if !change(&s) {
			return s, nil
		}
		err := h.store.Save(ctx, s)
		if err == nil {
			s.Rev++
			return s, nil
		}
		if !errors.Is(err, Conflict) {
			return s, err
		}
		if s, _, err = h.store.Load(ctx, s.ID, BoxFor(s.Tenant, s.Server)); err != nil {
			return s, err
		}
	}
	return s, Errorf(Unavailable, "the session is being changed by too many requests at once; try again")
}

// answer stores a client's response to a server's question, then hands it over.
// A question of a box that does not run any more has nobody to take the answer.
func (h *Host) answer(ctx context.Context, s Session, box Box, m wire.Message) error {
	question, ok := wire.String(m.ID)
	if !ok || box.State == Asleep {
		return nil
	}
	a := Answer{Session: s.ID, Question: question, Raw: m.Raw, Expires: time.Now().Add(h.limits.EventAge)}
	first, err := h.store.PutAnswer(ctx, a)
	if err != nil {
		return err
	}
	if !first {
		// A repeat, or a put whose answer was lost: then the box may not have heard of
		// it. It hears the one that counts, which it ignores if it has had it.
		kept, err := h.store.Answers(ctx, s.ID, []string{question})
		if err != nil || len(kept) == 0 {
			return err
		}
		a = kept[0]
	}
	return h.backend.Answer(ctx, a, box)
}

// End ends a session (DELETE). NotFound if it is not there any more. Its process
// is stopped if the box can be told now, and else when it has been idle.
func (h *Host) End(ctx context.Context, c Caller, id ID) error {
	s, box, err := h.Load(ctx, c, id)
	if err != nil {
		return err
	}
	if s, err = h.quit(ctx, s, QuitClient); err != nil {
		return err
	}
	// It has ended, whether the box hears of it now or not.
	_ = h.backend.End(ctx, s, box)
	return nil
}

// tombstoneLife keeps the reason a session ended for an operator to see.
const tombstoneLife = time.Hour

func (h *Host) quit(ctx context.Context, s Session, why Quit) (Session, error) {
	return h.update(ctx, s, func(s *Session) bool {
		if s.State == Ended {
			return false
		}
		s.State, s.Quit, s.Expires = Ended, why, time.Now().Add(tombstoneLife)
		return true
	})
}
