package sessions

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Accept takes the messages of one POST or WebSocket frame: one message, or a batch. The Call is
// nil if no message needs a response. Requests count as accepted only once [Call.Next] has
// returned.
//
// Accept itself handles ping, notifications/initialized, requests for lists that are in the handshake
// record, and a client's responses to requests of the server. Accept sends a notification to an awake
// box once, and drops one for a sleeping box.
//
// Errors: NotFound (session), Invalid, TooLarge (over [storage.MaxBatchEvents] messages,
// or ids of over 16 KiB together, or too many answers), Unavailable, Busy.
func (h *Manager) Accept(ctx context.Context, c Caller, id storage.ID, msgs []wire.Message, batch bool) (*Call, error) {
	if err := bounded(msgs...); err != nil {
		return nil, err
	}
	u, err := h.use(ctx, c, id)
	if err != nil {
		return nil, err
	}
	var call *Call
	if len(msgs) == 1 && msgs[0].Method == wire.MethodPing && msgs[0].Kind == wire.Request {
		call, err = h.readyCall(wire.ResultResponse(msgs[0].ID, nil)), u.touch(ctx)
	} else if err = u.initialized(ctx); err == nil {
		call, err = u.accept(ctx, msgs, batch)
	}
	if call != nil {
		call.init = u.session.Init
	}
	return call, err
}

// maxIDs bounds the ids of the requests in one body, in bytes, because a store keeps them in
// one record.
const maxIDs = 16 << 10

// bounded refuses a body with so many requests that their error responses would not fit into one
// [storage.Batch].
func bounded(msgs ...wire.Message) error {
	if len(msgs) > storage.MaxBatchEvents {
		return storage.Errorf(storage.TooLarge, "%d messages at once; send at most %d", len(msgs), storage.MaxBatchEvents)
	}
	size := 0
	for _, m := range msgs {
		if m.Kind == wire.Request {
			size += len(m.ID)
		}
	}
	if size > maxIDs {
		return storage.Errorf(storage.TooLarge, "the ids of the requests have %d bytes; use shorter ones, of at most %d together", size, maxIDs)
	}
	return nil
}

// overtaking is how long a message waits for the initialize of its session. API Gateway does not keep
// the messages of a WebSocket connection in order.
const overtaking = 2 * time.Second

// initialized waits for the initialize of a session that has none yet (state Opened). For an HTTP+SSE
// client it does not wait, but makes the session Ready. A TypeScript client whose stream was cut
// opens a new session and sends no initialize.
func (u *use) initialized(ctx context.Context) error {
	begun := time.Now()
	for u.session.State == storage.Opened && u.caller.Transport != storage.SSE {
		if time.Since(begun) >= overtaking {
			return storage.Errorf(storage.Invalid, "the session is not initialized; send initialize first")
		}
		if err := storage.Rest(ctx, overtaking/20); err != nil {
			return err
		}
		var err error
		if u.session, u.box, err = u.manager.Load(ctx, u.caller, u.session.ID); err != nil {
			return err
		}
	}
	if u.session.State != storage.Opened {
		return nil
	}
	return u.update(ctx, func(s *storage.Session) bool {
		if s.State != storage.Opened {
			return false
		}
		s.State, s.Version, s.Pushes = storage.Ready, wire.V20241105, true
		s.Init = json.RawMessage(`{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"unknown","version":""}}`)
		u.manager.limits.extend(s)
		return true
	})
}

func (u *use) accept(ctx context.Context, msgs []wire.Message, batch bool) (*Call, error) {
	if batch && u.caller.Transport != storage.HTTP && u.session.Version > wire.V20250326 {
		return nil, storage.Errorf(storage.Invalid, "version %s has no batches; send each message by itself", u.session.Version)
	}
	var rest []wire.Message
	var requests []json.RawMessage
	used := false // a message shows that the client has got the answer to its initialize
	for _, m := range msgs {
		switch {
		case m.Kind == wire.Response:
			if err := u.answered(ctx, m); err != nil {
				return nil, err
			}
			continue
		case m.Kind == wire.Request && m.Method == wire.MethodInitialize:
			return nil, storage.Errorf(storage.Invalid, "this session is initialized already; send initialize without a session id to open another")
		case m.Method == wire.NotifyInitialized:
			used = true
			continue
		case m.Kind == wire.Request:
			used = true // some clients never send notifications/initialized
			requests = append(requests, m.ID)
		}
		rest = append(rest, m)
	}
	if used {
		if err := u.ready(ctx); err != nil {
			return nil, err
		}
	}
	if len(rest) == 0 {
		return nil, nil
	}
	if answer, err := u.unaccepted(ctx, rest...); answer != nil || err != nil {
		return answer, err
	}
	if err := u.remember(ctx, rest); err != nil {
		return nil, err
	}
	a := storage.Address{Requests: requests, Shown: shownTo(u.caller, toolLists(rest)...)}
	if m := rest[0]; !batch && m.Kind == wire.Request {
		result, part, err := u.recorded(ctx, m.Method, m.Params)
		if err != nil {
			return nil, err
		}
		if result != nil {
			return u.manager.readyCall(wire.ResultResponse(m.ID, result)), nil
		}
		a.List = part
	}
	needs := slices.ContainsFunc(rest, func(m wire.Message) bool { return m.Kind == wire.Request && needsSecrets(m.Method) })
	once, err := u.onceOf(ctx, 0, batch, rest...)
	if err != nil {
		return nil, err
	}
	call, err := u.deliver(ctx, Delivery{Raw: bodyOf(rest, batch), Tools: tools(rest), Needs: needs, Address: a, once: once})
	// MCP 2025-11-25, client/elicitation, "URL Elicitation Required Error".
	byURL := u.session.Version >= wire.V20251125 && wire.Lookup(u.session.Init, "capabilities", "elicitation", "url") != nil
	if answer := u.unconnected(err, byURL, rest...); answer != nil {
		return answer, nil
	}
	return call, err
}

func tools(msgs []wire.Message) (names []string) {
	for _, m := range msgs {
		if m.Kind == wire.Request && m.Method == wire.MethodToolsCall {
			names = append(names, tool(m.Params))
		}
	}
	return names
}

func tool(params json.RawMessage) string {
	name, _ := wire.String(wire.Lookup(params, "name"))
	return name
}

// bodyOf returns the body of a delivery: the only message, or a JSON array of msgs if batch is true.
func bodyOf(msgs []wire.Message, batch bool) []byte {
	if !batch {
		return msgs[0].Raw
	}
	raws := make([][]byte, len(msgs))
	for i, m := range msgs {
		raws[i] = m.Raw
	}
	return wire.Array(raws)
}

// ready makes a session Ready, so that its messages extend its life; see [Limits.Life].
func (u *use) ready(ctx context.Context) error {
	return u.update(ctx, func(s *storage.Session) bool {
		if s.State != storage.Created {
			return false
		}
		s.State = storage.Ready
		u.manager.limits.extend(s)
		return true
	})
}

// remember records what a later process of the session has to be told: the log level, and the
// resources that the client has subscribed to, within the bounds below. It also extends the life of
// the session.
func (u *use) remember(ctx context.Context, msgs []wire.Message) error {
	kept := func(m wire.Message) bool {
		return m.Kind == wire.Request && (m.Method == wire.MethodSetLevel || m.Method == wire.MethodSubscribe || m.Method == wire.MethodUnsubscribe)
	}
	if some := slices.ContainsFunc(msgs, kept); !some || u.session.Group != "" {
		if err := u.touch(ctx); err != nil || !some {
			return err
		}
	}
	return u.update(ctx, func(s *storage.Session) bool {
		for _, m := range msgs {
			if kept(m) {
				noteRequest(s, m)
			}
		}
		if s.Group == "" { // for a session within a group, use.touch extends the life
			u.manager.limits.extend(s)
		}
		return true
	})
}

// Bounds of the client's data in a session's record.
const (
	maxInit       = 64 << 10  // bytes of the initialize parameters
	maxLevel      = 64        // bytes; no level of MCP is longer
	maxSubscribed = 500       // resources that the client has subscribed to
	maxURIs       = 128 << 10 // bytes of the URIs together
)

func noteRequest(s *storage.Session, m wire.Message) {
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
