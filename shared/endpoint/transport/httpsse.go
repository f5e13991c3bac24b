package transport

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// In HTTP+SSE (MCP 2024-11-05, basic/transports) one event stream carries all messages of the
// server, answers included. The client posts each of its messages.
//
// The stream is held for as long as the platform allows, because clients lose more than the stream
// when it ends. The clients of Python and Go do not come back. The TypeScript client does, but it does
// not name its session. A client that comes back with the id of the last event, or with the
// session in the query, goes on in its session. A client with neither gets a new session, and need
// not initialize it.

// querySession is the query parameter of the session, in the URI to which clients post.
const querySession = "sessionId"

// getSSE serves GET /<server>/sse, and GET /<server>/mcp without a session.
func getSSE(x *exchange) error {
	if err := x.streams(); err != nil {
		return err
	}
	end := x.until(x.opts.Limit)
	id, call, err := x.at(storage.SSE).Follow(x.ctx(), x.r.Header.Get(wire.HeaderLastEventID), x.r.URL.Query().Get(querySession), end)
	x.session = id
	if err != nil {
		return err
	}
	out, sent := x.commit(), call.Cursor()
	defer func() { x.stop(call, sent) }()
	out.endpoint(sent, endpointURI(x))
	// Events are sent until the session has ended, a newer response reads the stream, the time is
	// over or the client has gone.
	for {
		if out.flush() != nil {
			return nil
		}
		sent = call.Cursor()
		if call.Done() || !time.Now().Before(end) {
			return nil
		}
		events, err := call.Next(x.ctx(), earlier(end, time.Now().Add(x.opts.KeepAlive)))
		out.events(events)
		if err != nil {
			if x.ctx().Err() == nil {
				x.err = err
			}
			_ = out.flush() // nothing follows, so it does not matter if the client has gone
			return nil
		}
		if len(events) == 0 {
			out.comment("keep-alive")
		}
	}
}

// endpointURI returns the URI to which the client posts. It has no origin: only the platform knows
// the right one, and clients refuse any other. It is an absolute path, because Java's clients do
// not resolve it against the URI of the stream.
func endpointURI(x *exchange) string {
	path := strings.TrimSuffix(x.r.URL.EscapedPath(), "/")
	return prefix(x.r) + path[:strings.LastIndex(path, "/")+1] + "message?" + querySession + "=" + string(x.session)
}

// postSSE takes a client's message: POST /<server>/message?sessionId=.... The response
// says only whether the message was accepted.
func postSSE(x *exchange) error {
	if err := x.contentType(); err != nil {
		return err
	}
	named := x.r.URL.Query().Get(querySession)
	if named == "" {
		return refusal(http.StatusBadRequest, storage.Invalid, wire.CodeServer,
			"the request names no session; post to the URI that the event stream began with")
	}
	body, err := x.body()
	if err != nil {
		return err
	}
	msgs, batch, err := wire.ParseBody(body)
	x.method, x.id = subject(msgs)
	x.r = x.called.reads(x.r, msgs)
	if err != nil {
		return err
	}
	if err := x.named(named); err != nil {
		return err
	}
	endpoint, id := x.at(storage.SSE), x.session
	var answers [][]byte
	modern := anyModern(msgs, x.r.Header.Get(wire.HeaderProtocolVersion))
	if modern {
		// The modern era has no HTTP+SSE, so a modern request gets an error. The error goes to the
		// stream, like all answers: the client of the Go SDK tries the modern era first, and would take
		// a refused POST for a broken connection. After an error in the stream, that client sends
		// initialize.
		for _, m := range msgs {
			if m.Kind == wire.Request {
				requested, _ := modernVersion(m, x.r.Header.Get(wire.HeaderProtocolVersion))
				x.err = unsupported(requested, wire.LegacyVersions())
				answers = append(answers, wire.ErrorResponse(m.ID, problemOf(x.err).rpc))
			}
		}
	} else if answers, err = x.handAside(endpoint, msgs, batch); err != nil {
		return err
	}
	if modern || len(answers) > 0 {
		if err := endpoint.Say(x.ctx(), id, answers...); err != nil {
			return err
		}
	}
	x.document(http.StatusAccepted, "text/plain; charset=utf-8", []byte("Accepted"))
	return nil
}

// handAside hands messages over and waits until they are accepted. The result answers has only the
// answers to requests that were refused here. The server answers the others on the client's event
// stream.
func (x *exchange) handAside(endpoint sessions.Endpoint, msgs []wire.Message, batch bool) (answers [][]byte, err error) {
	var call sessions.Response
	switch {
	case !slices.ContainsFunc(msgs, isInitialize):
		call, err = x.hand(endpoint, x.session, msgs, batch)
	case batch:
		err = initializeInBatch()
	default:
		if _, call, err = endpoint.Initialize(x.ctx(), x.session, msgs[0]); err == nil {
			x.called.begins(call)
		}
	}
	if err == nil && call != nil {
		if !call.Boxed() { // no box will report the end of the call
			x.called.outlives(call)
		}
		var events []sessions.Event
		events, err = call.Accepted(x.ctx())
		x.saw(events)
	}
	if answers = x.called.refused(msgs, batch, err); answers != nil {
		x.err, err = err, nil
	}
	return answers, err
}
