package front

import (
	"net/http"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// HTTP+SSE (MCP 2024-11-05, basic/transports): one event stream for all that a
// server says, and a POST for each message of the client, whose answer comes on
// the stream.
//
// The stream is held for as long as the platform allows, because a client that
// loses it loses more: Python's and go's do not come back, and TypeScript's comes
// back without a word of the session it was in. Who comes back with the id of the
// last event, or with the session in the query, goes on in its session. Who says
// nothing gets a new one, and need not initialize it.

// querySession names the session in the URI that a client is told to post to.
const querySession = "sessionId"

// eventStream serves GET /<server>/sse, and GET /<server>/mcp without a session.
func (x *exchange) eventStream() error {
	if err := x.streams(); err != nil {
		return err
	}
	x.caller.Transport = session.SSE
	from, err := x.resumed()
	if err != nil {
		return err
	}
	if x.session == "" {
		s, err := x.opts.Host.Open(x.ctx(), x.caller)
		if err != nil {
			return err
		}
		x.session = s.ID
	}
	end := x.until(x.opts.Limit)
	call, err := x.opts.Host.Follow(x.ctx(), x.caller, x.session, from, end)
	if err != nil {
		return err
	}
	out := x.commit()
	out.endpoint(call.Cursor(), x.endpoint(), x.opts.Host.Limits().Pace)
	sent := x.send(out, call, end)
	ctx, cancel := x.detached()
	defer cancel()
	_ = call.Report(ctx, sent) // if it fails, the next stream repeats what this one sent
	return nil
}

// resumed reads what a client that was here before says: the id of the last event
// it got, or only its session.
func (x *exchange) resumed() (from *session.Index, err error) {
	if last := x.r.Header.Get(wire.HeaderLastEventID); last != "" {
		id, err := session.ParseEventID(last)
		if err != nil {
			return nil, err
		}
		if id.Stream == session.Out && id.Nonce != "" {
			x.session = session.ID(id.Nonce)
			return &id.Index, nil
		}
	}
	if id := x.r.URL.Query().Get(querySession); id != "" {
		return nil, x.named(id)
	}
	return nil, nil
}

// endpoint is where the client shall post, relative to where it got the stream:
// what stands before that path is the platform's. Clients refuse another origin.
func (x *exchange) endpoint() string {
	up := ""
	if strings.HasSuffix(x.r.URL.Path, "/") {
		up = "../"
	}
	return up + "message?" + querySession + "=" + string(x.session)
}

// endpoint adds the event that has to open an event stream of HTTP+SSE. Its id
// names the session and its place.
func (s *stream) endpoint(id session.EventID, uri string, retry time.Duration) {
	s.buf = wire.AppendSSE(s.buf, wire.SSE{Name: "endpoint", ID: id.String(), Retry: retry, Data: []byte(uri)})
}

// send sends what comes until the session has ended, another stream has taken its
// place, the time is over or the client has gone. It returns how far it came.
func (x *exchange) send(out *stream, call *host.Call, end time.Time) (sent session.Index) {
	sent = call.Cursor().Index
	for {
		if out.flush() != nil {
			return sent
		}
		sent = call.Cursor().Index
		if call.Done() || !time.Now().Before(end) {
			return sent
		}
		events, err := call.Next(x.ctx(), earlier(end, time.Now().Add(x.opts.KeepAlive)))
		if err != nil {
			if x.ctx().Err() == nil {
				x.err = err
			}
			return sent
		}
		if len(events) == 0 {
			out.comment("keep-alive")
		} else if call.Gap() {
			out.gap()
		}
		for _, e := range events {
			out.buf = wire.AppendSSE(out.buf, wire.SSE{Name: "message", ID: call.ID(e).String(), Data: e.Raw})
		}
	}
}

// message takes what a client sends: POST /<server>/message?sessionId=.... All it
// is answered in this response is whether it was accepted.
func (x *exchange) message() error {
	x.caller.Transport = session.SSE
	if err := x.contentType(); err != nil {
		return err
	}
	id := x.r.URL.Query().Get(querySession)
	if id == "" {
		return refusal(http.StatusBadRequest, session.Invalid, wire.CodeServer,
			"the request names no session; post to the URI that the event stream began with")
	}
	body, err := x.body()
	if err != nil {
		return err
	}
	msgs, batch, err := wire.ParseBody(body)
	x.method, x.id = subject(msgs)
	if err != nil {
		return err
	}
	if err := x.named(id); err != nil {
		return err
	}
	if x.isModernPost(msgs) {
		return x.notModern(msgs)
	}
	call, err := x.taken(msgs, batch)
	if session.CodeOf(err) == session.Busy && !batch && x.id != nil {
		x.err = err
		if err = x.opts.Host.Say(x.ctx(), x.session, wire.ErrorResponse(x.id, busy(problemOf(err).rpc))); err == nil {
			x.text(http.StatusAccepted, "Accepted")
		}
	}
	if err != nil || x.status != 0 {
		return err
	}
	if call != nil {
		if err := x.onStream(call); err != nil {
			return err
		}
	}
	x.text(http.StatusAccepted, "Accepted")
	return nil
}

// notModern refuses messages of the modern era, which has no event stream. Requests are
// answered there, like all others: go's client takes a refused POST for a connection that
// is broken, and asks for the modern era first; told so it goes on with initialize.
func (x *exchange) notModern(msgs []wire.Message) error {
	if _, _, err := x.opts.Host.Load(x.ctx(), x.caller, x.session); err != nil {
		return err
	}
	var answers [][]byte
	for _, m := range msgs {
		if m.Kind != wire.Request {
			continue
		}
		requested, _ := modernVersion(m, x.r.Header.Get(wire.HeaderProtocolVersion))
		x.err = unsupportedModern(requested)
		answers = append(answers, wire.ErrorResponse(m.ID, problemOf(x.err).rpc))
	}
	if len(answers) > 0 {
		if err := x.opts.Host.Say(x.ctx(), x.session, answers...); err != nil {
			return err
		}
	}
	x.text(http.StatusAccepted, "Accepted")
	return nil
}

func (x *exchange) taken(msgs []wire.Message, batch bool) (*host.Call, error) {
	if msgs[0].Kind == wire.Request && msgs[0].Method == wire.MethodInitialize && !batch {
		_, call, err := x.opts.Host.Initialize(x.ctx(), x.caller, x.session, msgs[0])
		return call, err
	}
	return x.opts.Host.Accept(x.ctx(), x.caller, x.session, msgs, batch)
}

// onStream waits until a request has been accepted. Who answers it puts the answer
// on the stream; what was answered in place is put there now.
func (x *exchange) onStream(call *host.Call) error {
	events, err := call.Next(x.ctx(), time.Now())
	if err != nil || call.Stored() {
		return err
	}
	for _, e := range events {
		if err := x.opts.Host.Say(x.ctx(), x.session, e.Raw); err != nil {
			return err
		}
	}
	return nil
}
