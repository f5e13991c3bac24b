package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A modern client (2026-07-28) has no session. But Dormouse must find the process that asked a
// question, when the client answers it with another request. All requests of one tenant, principal,
// server and kind of client ([Caller.Kind]) therefore share an inner session, with a computed id,
// and its process. The transport of an inner session is [storage.Modern], so no method for legacy
// clients finds it. The process gets each request with the name of the request's stream as its id.

// PinnedID returns the id of a caller's inner session, which Dormouse keeps for a modern client.
func PinnedID(c Caller) storage.ID {
	named := fmt.Appendf(nil, "modern %q %q %q", c.Tenant, c.Principal, c.Server.Name)
	if c.Kind != "" {
		named = fmt.Appendf(named, " %q", c.Kind)
	}
	return storage.ID(hashOf(20, named))
}

// Stream returns the stream of the call. For a call of [Manager.Send] it is also the id
// of the request, a JSON string, that the process gets.
func (c *Call) Stream() storage.StreamID { return c.stream }

// Send sends a modern client's request to the process of the caller's inner session. The response
// to the request has the id [Call.Stream]; the transport ignores other responses of the stream.
// server is the server's serverInfo from the handshake record, nil if that has none.
//
// Cost: as a tools/call of a session. The very first request costs a read and two writes
// more. Each request costs a read more while there is no handshake record. The first request that
// wants log messages costs a write more. A list costs a read more, and no write if it is
// in the record.
//
// Errors: TooLarge, Unavailable, Busy, and the errors of client.Check.
func (h *Manager) Send(ctx context.Context, c Caller, client Client, method string, params json.RawMessage) (call *Call, server json.RawMessage, err error) {
	u := &use{manager: h, caller: c}
	moved, err := u.pinned(ctx, client)
	if err != nil {
		return nil, nil, err
	}
	m := wire.Message{Kind: wire.Request, Method: method, Params: params}
	once, err := u.onceOf(ctx, client.Round, false, m)
	if err != nil {
		return nil, nil, err
	}
	stream := once.newStream()
	m.ID = quoted(string(stream))
	answered := func(answer *Call) (*Call, json.RawMessage, error) {
		answer.stream, answer.params = stream, u.session.Params
		return answer, u.session.ServerInfo, nil
	}
	if answer, err := u.unaccepted(ctx, m); err != nil {
		return nil, nil, err
	} else if answer != nil {
		return answered(answer)
	}
	cold, brief := client.List != nil && u.session.Params == nil, false
	if client.Check != nil && !cold {
		if brief, err = client.Check(u.session.Params); err != nil {
			return nil, nil, err
		}
	}
	result, part, err := u.recorded(ctx, method, params)
	if err != nil {
		return nil, nil, err
	}
	if result != nil {
		return answered(h.readyCall(wire.ResultResponse(m.ID, result)))
	}
	d := Delivery{Raw: wire.NewRequest(m.ID, method, params), Needs: needsSecrets(method), Brief: brief, once: once, Address: storage.Address{
		Stream: stream, Requests: []json.RawMessage{m.ID}, List: part, Moved: moved,
	}}
	if client.Verbose && u.session.Level == "" {
		if err := u.update(ctx, func(s *storage.Session) bool { s.Level = mostVerbose; return true }); err != nil {
			return nil, nil, err
		}
		// Both messages are in one delivery, so the process gets the level first.
		level := quoted(string(stream) + "-level")
		set := wire.NewRequest(level, wire.MethodSetLevel, json.RawMessage(`{"level":"`+mostVerbose+`"}`))
		d.Raw, d.Requests, d.List = wire.Array([][]byte{set, d.Raw}), append(d.Requests, level), ""
	}
	switch method {
	case wire.MethodToolsCall:
		d.Tools = []string{tool(params)}
	case wire.MethodToolsList:
		d.Shown = shownTo(c, m.ID)
	}
	if cold {
		call, err = u.deliverCold(ctx, client, d)
	} else {
		call, err = u.deliver(ctx, d)
	}
	if answer := u.unconnected(err, client.Visits, m); answer != nil {
		return answered(answer)
	}
	if call != nil {
		call.params = u.session.Params
	}
	return call, u.session.ServerInfo, err
}

// deliverCold delivers a request whose Check needs a list of tools that no client has asked for yet:
// client.List asks the server for it first.
func (u *use) deliverCold(ctx context.Context, client Client, d Delivery) (*Call, error) {
	if err := u.getSecrets(ctx, &d); err != nil {
		return nil, err
	}
	params, err := client.List(ctx)
	if err != nil {
		return nil, err
	}
	if d.Brief, err = client.Check(params); err != nil {
		return nil, err
	}
	if _, err = u.pinned(ctx, client); err != nil { // the request for the list may have changed session and box
		return nil, err
	}
	return u.admit(ctx, d)
}

// Learn keeps params in the caller's inner session, for [Client.Check] of later requests. params is
// the result of bridge.ToolNotes for a list of tools. call is the call of [Manager.Send] that got
// the list, nil for a list of another source. Cost: none if call began with the same params, otherwise
// one read, and one write if the params are new.
//
// Errors: Unavailable.
func (h *Manager) Learn(ctx context.Context, c Caller, call *Call, params json.RawMessage) error {
	if call != nil && bytes.Equal(call.params, params) {
		return nil
	}
	u, err := h.use(ctx, c, PinnedID(c))
	if err == nil {
		err = u.update(ctx, func(s *storage.Session) bool {
			same := bytes.Equal(s.Params, params)
			s.Params = bytes.Clone(params)
			return !same
		})
	}
	return storage.IgnoreNotFound(err)
}

const mostVerbose = "debug"

func quoted(word string) json.RawMessage { return json.RawMessage(strconv.Quote(word)) }

// Greeting returns the answer of the caller's server to initialize. The result comes from the
// handshake record, or is a provisional answer while the server is being prepared
// ([Server.Preparing]). If the result is nil, Greeting has started the process, and the response to
// call is the answer.
//
// Errors: TooLarge, Unavailable, Busy.
func (h *Manager) Greeting(ctx context.Context, c Caller, client Client) (result json.RawMessage, call *Call, err error) {
	if result, err = h.greeted(ctx, c, "", wire.V20251125); result != nil || err != nil {
		return result, nil, err
	}
	if c.Server.Preparing {
		return notToKeep(provisional(c.Server.Name, wire.V20251125)), nil, nil
	}
	u := &use{manager: h, caller: c}
	if _, err := u.pinned(ctx, client); err != nil {
		return nil, nil, err
	}
	stream := storage.NewStreamID()
	id := quoted(string(stream))
	call, err = u.deliver(ctx, Delivery{Raw: wire.NewRequest(id, wire.MethodInitialize, u.session.Init), Address: storage.Address{Stream: stream, Requests: []json.RawMessage{id}, Shown: greetingOf(c)}})
	return nil, call, err
}

// Reattach first passes on responses to questions, as [Manager.Reply] does. The result continues a call
// of [Manager.Send] after the event with the given index. The Call is Done if the log no longer has its
// events. server is serverInfo, nil if unknown.
//
// Errors: NotFound (the caller has no inner session), Unavailable.
func (h *Manager) Reattach(ctx context.Context, c Caller, stream storage.StreamID, after storage.Index, responses ...[]byte) (call *Call, server json.RawMessage, err error) {
	u, err := h.use(ctx, c, PinnedID(c))
	if err == nil {
		err = u.replies(ctx, responses)
	}
	if err != nil {
		return nil, nil, err
	}
	if call, err = u.resume(ctx, storage.EventID{Stream: stream, Index: after}); call != nil {
		call.params = u.session.Params
	}
	return call, u.session.ServerInfo, err
}

// Learned returns the params that [Manager.Learn] had kept when the call was sent or
// reattached, or nil.
func (c *Call) Learned() json.RawMessage { return c.params }

// Reply stores responses to questions that the process of the caller's inner session has asked, and
// passes them on to it. The first response to a question counts. Reply does nothing if the caller
// has no inner session.
//
// Errors: Unavailable.
func (h *Manager) Reply(ctx context.Context, c Caller, responses ...[]byte) error {
	u, err := h.use(ctx, c, PinnedID(c))
	if err != nil {
		return storage.IgnoreNotFound(err)
	}
	return u.replies(ctx, responses)
}

func (u *use) replies(ctx context.Context, responses [][]byte) error {
	for _, raw := range responses {
		m, err := wire.Parse(raw)
		if err != nil {
			return err
		}
		if err := u.answer(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// Abandon cancels a call of [Manager.Send], because its client has closed the response or cancelled
// the task that the call became. A server that works on the call gets notifications/cancelled once.
// A server that has not begun does not get the call.
//
// Errors: Unavailable.
func (h *Manager) Abandon(ctx context.Context, c Caller, stream storage.StreamID, why string) error {
	u, err := h.use(ctx, c, PinnedID(c))
	if err != nil {
		return storage.IgnoreNotFound(err)
	}
	if u.box.State == storage.Awake || c.Server.InPlace {
		raw := wire.NewNotification(wire.NotifyCancelled,
			json.RawMessage(`{"requestId":`+string(quoted(string(stream)))+`,"reason":`+string(quoted(why))+`}`))
		if _, err := u.deliver(ctx, Delivery{Raw: raw}); err != nil || !c.Server.InPlace {
			return err
		}
	}
	// The box does not run, so the call waits in the store. An instance that takes a call from there
	// first looks whether the stream has an end.
	a := storage.Address{Session: u.session.ID, Stream: stream, Requests: []json.RawMessage{quoted(string(stream))}}
	end := &wire.Error{Code: wire.CodeCancelled, Message: "the request was cancelled: " + why}
	return h.out.Fail(ctx, a, end, time.Now().Add(h.limits.EventAge))
}

// Notify passes a modern client's notification to the process of the caller's inner session. Notify
// does nothing if the caller has no inner session, and does not wake a sleeping box.
//
// Errors: Unavailable, Busy.
func (h *Manager) Notify(ctx context.Context, c Caller, m wire.Message) error {
	u, err := h.use(ctx, c, PinnedID(c))
	if err != nil || u.box.State != storage.Awake && !c.Server.InPlace {
		return storage.IgnoreNotFound(err)
	}
	_, err = u.deliver(ctx, Delivery{Raw: m.Raw})
	return err
}

// Watch follows the messages that the process of the caller's inner session sends outside of
// requests, from now on. Unlike with [Manager.Listen], several callers get all messages at the
// same time.
//
// Errors: Unavailable.
func (h *Manager) Watch(ctx context.Context, c Caller) (*Call, error) {
	id := PinnedID(c)
	tail, err := h.store.Tail(ctx, id, storage.Standalone)
	if err != nil {
		return nil, err
	}
	return &Call{manager: h, session: id, stream: storage.Standalone, after: tail.Last, begun: time.Now()}, nil
}

// Subscribe subscribes to resources. The server's response for uris[i] is in the stream of the Call,
// with the id [Call.Stream] + "-" + i. The subscription ends when [Manager.Unsubscribe] has been
// called as often as Subscribe for the same URI. A caller has at most 500 subscriptions, with URIs
// of 128 KiB together.
//
// Errors: TooLarge, Busy (too many), Unavailable.
func (h *Manager) Subscribe(ctx context.Context, c Caller, client Client, uris []string) (*Call, error) {
	u := &use{manager: h, caller: c}
	if _, err := u.pinned(ctx, client); err != nil {
		return nil, err
	}
	full := false
	err := u.update(ctx, func(s *storage.Session) bool {
		size := 0
		for _, uri := range slices.Concat(s.Subscribed, uris) {
			size += len(uri)
		}
		if full = len(s.Subscribed)+len(uris) > maxSubscribed || size > maxURIs; full {
			return false
		}
		s.Subscribed = append(slices.Clone(s.Subscribed), uris...)
		return true
	})
	if err == nil && full {
		err = storage.Errorf(storage.Busy, "more than %d resources, or %d bytes of their URIs, are listened to; end another subscription first", maxSubscribed, maxURIs).
			Because(&storage.Limited{Kind: "concurrent", Scope: "principal", After: time.Second})
	}
	if err != nil {
		return nil, err
	}
	call, err := u.subscription(ctx, wire.MethodSubscribe, uris)
	if err != nil {
		return nil, errors.Join(err, h.Unsubscribe(ctx, c, uris))
	}
	return call, nil
}

// Unsubscribe undoes one Subscribe. It does not wake a sleeping box.
//
// Errors: Unavailable.
func (h *Manager) Unsubscribe(ctx context.Context, c Caller, uris []string) error {
	u, err := h.use(ctx, c, PinnedID(c))
	if err != nil {
		return storage.IgnoreNotFound(err)
	}
	var last []string
	err = u.update(ctx, func(s *storage.Session) bool {
		left := slices.Clone(s.Subscribed)
		last = nil
		for _, uri := range uris {
			if i := slices.Index(left, uri); i >= 0 {
				left = slices.Delete(left, i, i+1)
			}
			if !slices.Contains(left, uri) {
				last = append(last, uri)
			}
		}
		changed := len(left) != len(s.Subscribed)
		s.Subscribed = left
		return changed
	})
	if err != nil || len(last) == 0 || u.box.State != storage.Awake {
		return storage.IgnoreNotFound(err)
	}
	_, err = u.subscription(ctx, wire.MethodUnsubscribe, last)
	return err
}

func (u *use) subscription(ctx context.Context, method string, uris []string) (*Call, error) {
	stream := storage.NewStreamID()
	raws := make([][]byte, len(uris))
	requests := make([]json.RawMessage, len(uris))
	for i, uri := range uris {
		requests[i] = quoted(string(stream) + "-" + strconv.Itoa(i))
		raws[i] = wire.NewRequest(requests[i], method, fmt.Appendf(nil, `{"uri":%s}`, wire.AppendString(nil, uri)))
	}
	return u.deliver(ctx, Delivery{Raw: wire.Array(raws), Address: storage.Address{Stream: stream, Requests: requests}})
}

// pinned reads the inner session of the caller and its box, and makes the session if there is none
// or an operator has ended it. moved says that the server's lists may have changed since the
// session's last request ([moves]).
func (u *use) pinned(ctx context.Context, client Client) (moved bool, err error) {
	if len(client.Init) > maxInit {
		return false, storage.Errorf(storage.TooLarge, "what the client says of itself has %d bytes; send at most %d in clientInfo and extensions", len(client.Init), maxInit)
	}
	h, c, id := u.manager, u.caller, PinnedID(u.caller)
	u.session, u.box, err = h.store.Load(ctx, id, c.box(id))
	if errors.Is(err, storage.NotFound) {
		if err = u.pin(ctx, id, client); errors.Is(err, storage.Conflict) {
			u.session, u.box, err = h.store.Load(ctx, id, c.box(id)) // another request has made the session meanwhile
		}
	}
	if err != nil {
		return false, err
	}
	box := u.box
	moved = moves(u.session, c, box)
	server := u.session.ServerInfo
	if server == nil || moved {
		if server, err = u.serverInfo(ctx); err != nil {
			return false, err
		}
	}
	err = u.update(ctx, func(s *storage.Session) bool {
		same := !moves(*s, c, box) && s.State == storage.Ready && bytes.Equal(s.ServerInfo, server)
		if due := time.Until(s.Expires) <= h.limits.Life/2; same && !due {
			return false
		}
		if s.State == storage.Ended {
			s.Created = time.Now() // values that a server has stored for the ended session must not belong to the new one
		}
		s.Digest, s.Relisted, s.ServerInfo, s.State, s.Quit = c.code(box), box.Relisted, server, storage.Ready, storage.QuitNone
		h.limits.extend(s)
		return true
	})
	return moved, err
}

// pin makes an inner session. The session is Ready at once, because a box itself sends
// initialize to each process that it starts.
func (u *use) pin(ctx context.Context, id storage.ID, client Client) error {
	server, err := u.serverInfo(ctx)
	if err != nil {
		return err
	}
	s := u.caller.opened(id, u.manager.limits)
	s.Transport, s.State, s.Version, s.Init, s.ServerInfo = storage.Modern, storage.Ready, wire.V20251125, bytes.Clone(client.Init), server
	u.manager.limits.extend(&s)
	u.session = s
	return u.create(ctx)
}

// serverInfo returns the server's serverInfo from the handshake record, or nil.
func (u *use) serverInfo(ctx context.Context) (json.RawMessage, error) {
	greeting, err := u.manager.greeted(ctx, u.caller, "", wire.V20251125)
	if info := wire.Lookup(greeting, "serverInfo"); len(info) > 0 && info[0] == '{' {
		return bytes.Clone(info), err
	}
	return nil, err
}
