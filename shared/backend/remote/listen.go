package remote

import (
	"context"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// subscribe sends the subscriptions of the client to a legacy server, when a session there
// begins.
func subscribe(ctx context.Context, x *exchange) error {
	if x.link.Era != eraHTTP {
		return nil
	}
	for _, uri := range x.r.Session.Subscribed() {
		id := requestID()
		params, _ := json.Marshal(map[string]string{"uri": uri}) // cannot fail: it is a string
		talk, err := x.ask(ctx, wire.NewRequest(id, wire.MethodSubscribe, params), x.sessionHeader())
		if err != nil {
			return err
		}
		_, err = x.await(ctx, talk, id) // the response may be an error, for a resource that is gone
		talk.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// joinStandalone subscribes a request to the standalone stream of its session. It returns nil if
// the session has no standalone stream, or if the client wants nothing that can come there.
func joinStandalone(ctx context.Context, x *exchange) *subscriber {
	subscribed := len(x.r.Session.Subscribed()) > 0
	speaks := x.req.Rounds() && (asksClient(x) || logs(x)) || extends(x)
	if !listens(x) || !subscribed && !speaks {
		return nil
	}
	return join(ctx, x, x.r.Legacy || x.req.Rounds())
}

// listens reports whether the session may have a standalone stream at the server.
func listens(x *exchange) bool {
	if x.link.Era != eraHTTP || x.r.Once || x.link.Session == "" || x.link.Deaf {
		return false
	}
	return !x.s.traits().deaf
}

// asksClient reports whether the client of the request can be asked anything.
func asksClient(x *exchange) bool {
	for _, ability := range []string{"roots", "sampling", "elicitation"} {
		if wire.Lookup(x.req.Capabilities, ability) != nil {
			return true
		}
	}
	return false
}

// extends reports whether client and server both declare extensions, whose notifications may
// come on the standalone stream.
func extends(x *exchange) bool {
	return x.req.Extended() && wire.Lookup(x.link.Handshake, "capabilities", "extensions") != nil
}

// logs reports whether the client wants log messages and the server may send some.
func logs(x *exchange) bool {
	return x.req.LogLevel != "" && wire.Lookup(x.link.Handshake, "capabilities", "logging") != nil
}

// next returns the next event of the request. apart is true for an event that came on the
// standalone stream.
func (c *following) next(ctx context.Context) (e wire.SSE, apart bool, err error) {
	if c.standalone == nil {
		e, err = c.talk.next(ctx)
		return e, false, err
	}
	select {
	case e = <-c.standalone.events:
		return e, true, nil
	default:
	}
	select {
	case e = <-c.standalone.events:
		return e, true, nil
	case e, ok := <-c.talk.events:
		e, err = c.talk.took(e, ok)
		return e, false, err
	case <-ctx.Done():
		return wire.SSE{}, false, ctx.Err()
	}
}

// overhear handles a message that came on the standalone stream while the request is at the server.
// A question can reach the client in two ways. With the method forward, a legacy client gets it at
// once, while the request goes on. With the method take, it becomes the result of this round of the
// request, so that nothing is held open while a human thinks. A modern client can be asked only with
// take.
//
// take needs a stream of the request that another process can resume. If there is none, overhear
// calls forward for a legacy client, and refuses the question for a modern client unless Server.Here
// is set.
func (c *following) overhear(ctx context.Context, e wire.SSE) {
	m, err := wire.Parse(e.Data)
	if err != nil {
		return
	}
	suspends := m.Kind == wire.Request && c.req.Rounds() && (!c.r.Legacy || m.Method != wire.MethodRootsList)
	resumable := c.talk.last != ""
	switch {
	case suspends && !resumable && c.due.IsZero():
		// The first event of the request's stream may be under way, on another connection.
		c.parked, c.due = append(c.parked, e), time.Now().Add(gather)
	case suspends && !resumable && len(c.parked) < maxQuestions && time.Now().Before(c.due):
		c.parked = append(c.parked, e)
	case suspends && !c.r.Legacy && !resumable && !c.s.Here:
		c.refuse(ctx, c.talk, m)
	case suspends && (resumable || !c.r.Legacy), m.Kind == wire.Notification && m.Method == wire.NotifyMessage:
		_, _ = c.take(ctx, e.Data) // no reply: a response on this stream ends no request
	case m.Method == wire.NotifyCancelled && c.withdraws(m):
	default:
		c.forward(ctx, m)
	}
}

// forward gives a legacy client a question, or the cancel of one, while the request goes on. A
// modern client gets nothing.
func (c *following) forward(ctx context.Context, m wire.Message) {
	if !c.r.Legacy {
		return
	}
	if c.told++; c.told > mostAsked {
		if m.Kind == wire.Request {
			c.refuse(ctx, c.talk, m)
		}
		return
	}
	if raw := renamed(ctx, c.exchange, c.talk, c.session(), m); raw != nil {
		c.r.Ask(raw)
	}
}

// unpark calls overhear again for the questions in c.parked. It does nothing while the stream of the
// request cannot be resumed and c.due is in the future.
func (c *following) unpark(ctx context.Context) {
	if len(c.parked) == 0 || c.talk.last == "" && time.Now().Before(c.due) {
		return
	}
	parked := c.parked
	c.parked = nil
	for _, e := range parked {
		c.overhear(ctx, e)
	}
}

// withdraws reports whether m cancels a question in c.asked. It removes that question from
// c.turn, so the client does not get it.
func (c *following) withdraws(m wire.Message) bool {
	id := wire.Lookup(m.Params, "requestId")
	for _, q := range c.asked {
		if named, _ := wire.String(wire.Lookup(q.Raw, "id")); named != string(id) {
			continue
		}
		name, _ := json.Marshal(string(id)) // cannot fail: it is a string
		raw, _ := wire.Replace(m.Raw, name, "params", "requestId")
		c.index++
		c.turn.Take(storage.Event{Index: c.index, Raw: raw})
		return true
	}
	return false
}

// afterwards is how long linger waits for the next message. A response may overtake what the server
// sent before on the standalone stream.
const afterwards = 30 * time.Millisecond

// leaves is called when the request has ended. It passes on the questions of the server that nobody
// has answered.
func (c *following) leaves(ctx context.Context) {
	if c.link.Era != eraHTTP {
		return // over HTTP+SSE the questions end with the stream
	}
	for _, e := range c.parked {
		c.late(ctx, e)
	}
	if !c.turn.Asks() || c.turn.Again() {
		return
	}
	open := c.turn.State()
	for _, q := range c.asked {
		named, _ := wire.String(wire.Lookup(q.Raw, "id"))
		if _, asked := open.Key(named); asked {
			raw, _ := wire.Replace(q.Raw, json.RawMessage(named), "id")
			c.late(ctx, wire.SSE{Data: raw})
		}
	}
}

// linger waits a moment for messages that the server has sent on the standalone stream
// just before or after its answer.
func (c *following) linger(ctx context.Context) {
	subscribed := len(c.r.Session.Subscribed()) > 0
	if c.standalone == nil || !subscribed && !logs(c.exchange) && !extends(c.exchange) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, gather)
	defer cancel()
	for {
		wait, stop := ctx, context.CancelFunc(func() {})
		if !subscribed {
			wait, stop = context.WithTimeout(ctx, afterwards)
		}
		var e wire.SSE
		select {
		case e = <-c.standalone.events:
		case <-wait.Done():
		}
		if stop(); e.Data == nil {
			return
		}
		c.late(ctx, e)
	}
}

// late is for a message that came after the request had its answer. A legacy client can still get a
// question. For a modern client, the question is refused.
func (c *following) late(ctx context.Context, e wire.SSE) {
	m, err := wire.Parse(e.Data)
	switch {
	case err != nil:
	case m.Kind != wire.Request:
		c.overhear(ctx, e)
	case !c.r.Legacy:
		c.refuse(ctx, c.talk, m)
	default:
		c.forward(ctx, m)
	}
}

// refuse answers a question of the server with an error, because the client cannot get it.
func (x *exchange) refuse(ctx context.Context, talk *conversation, m wire.Message) {
	named, _ := json.Marshal(string(m.ID)) // a string is always JSON
	raw, _ := wire.Replace(m.Raw, named, "id")
	if a, ok := bridge.Unasked(raw); ok {
		a.Question = string(m.ID)
		_ = x.answer(ctx, talk, a) // at worst the server waits in vain
	}
}
