package host

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Accept takes the messages of one POST or frame: one message, or a batch. The Call is nil if
// no message needs a response. Otherwise nothing has been accepted yet; see [Call].
//
// Accept answers or takes these without a box: ping, notifications/initialized, lists in the
// handshake record, and responses to questions of a box that is gone. A notification reaches
// an awake box at most once. For a sleeping box it is dropped, because nothing is in flight
// that it could matter to.
//
// Errors: NotFound (session), Invalid, TooLarge (over [session.MaxBatchEvents] messages, or
// ids of over 16 KiB together, or too many answers), Unavailable, Busy.
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

// maxIDs bounds the ids of the requests in one body, in bytes, because a store keeps them in
// one record.
const maxIDs = 16 << 10

// bounded refuses messages whose requests could not be ended. The function that finds a box
// lost writes the ends of all requests of a body in one batch.
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

// overtaking is how long a message waits for the initialize that was sent before it. API
// Gateway does not keep the messages of one connection in order.
const overtaking = 2 * time.Second

// initialized waits for the initialize of a session that was opened with its connection. It
// does not wait for an HTTP+SSE client, and makes that session Ready at once. TypeScript's
// client opens a new stream when its own was cut, and believes that it has its old session.
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

// joined returns the body again, without the messages that were taken out.
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

// ready marks the session as initialized, which gives it its long life.
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

// remember keeps what a fresh process of the session must hear: the log level and the
// subscriptions, as many as the record holds.
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

// Bounds of the client's data in a session's record. Drivers keep the record whole, and every
// delivery carries it.
const (
	maxInit       = 64 << 10  // bytes of the initialize parameters
	maxLevel      = 64        // bytes; no level of MCP is longer
	maxSubscribed = 500       // resources
	maxURIs       = 128 << 10 // bytes of the URIs together
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
