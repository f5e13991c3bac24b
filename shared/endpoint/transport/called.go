package transport

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// called is what the log line of a request says about its client, and about the call of a
// tool.
type called struct {
	client  string           // the name that the client gave itself
	tool    string           // "" if the request calls no tool
	stream  storage.StreamID // stream of the call, "" if the call has no log
	again   bool             // an earlier request has begun the call, and this one continues it
	asked   bool             // the response is a question, which a later request may answer
	outcome string           // done or failed; "" if the end was not seen
	why     string           // why the call failed; "" if the log line must not show the reason
	parent  string           // traceparent of the client's span, "" for none
	version string           // protocol version in the client's header, "" for none
	said    observe.Said     // what the client and the server said, for auditors only

	// rest waits for the answer of a call that goes on after the request. If it is nil,
	// [Options].outlive does nothing.
	rest func(ctx context.Context) (answer []byte, err error)
}

func (c *called) asks(msgs []wire.Message) {
	request := func(m wire.Message) bool { return m.Kind == wire.Request }
	call := func(m wire.Message) bool { return request(m) && m.Method == wire.MethodToolsCall }
	i := slices.IndexFunc(msgs, call)
	if i < 0 {
		i = slices.IndexFunc(msgs, request)
	}
	if i < 0 {
		return
	}
	if parent, _ := wire.String(wire.Lookup(msgs[i].Params, "_meta", "traceparent")); isTraceparent(parent) {
		c.parent = parent
	}
	switch msgs[i].Method {
	case wire.MethodInitialize:
		c.client = wire.ClientName(msgs[i].Params)
	case wire.MethodToolsCall:
		c.tool, _ = wire.String(wire.Lookup(msgs[i].Params, "name"))
		c.said.Arguments = wire.Lookup(msgs[i].Params, "arguments")
		if slices.ContainsFunc(msgs[i+1:], call) { // list all calls of a batch, so that none is hidden
			all := []json.RawMessage{}
			for _, m := range msgs[i:] {
				if call(m) {
					all = append(all, m.Params)
				}
			}
			c.said.Arguments, _ = json.Marshal(all) // cannot fail: the params were parsed as JSON
		}
	}
}

// reads fills c from the messages and the headers of a request. It returns the request with a
// context whose trace has the client's span as its parent. A traceparent in a message takes
// precedence over the header, because one HTTP request may carry messages of several spans.
func (c *called) reads(r *http.Request, msgs []wire.Message) *http.Request {
	c.asks(msgs)
	if parent := r.Header.Get("traceparent"); c.parent == "" && isTraceparent(parent) {
		c.parent = parent
	}
	c.version = r.Header.Get(wire.HeaderProtocolVersion)
	return r.WithContext(c.in(r.Context()))
}

// in returns a context whose trace has the client's span as its parent.
func (c *called) in(ctx context.Context) context.Context { return storage.WithParent(ctx, c.parent) }

// isTraceparent reports whether s has the form of the W3C's Trace Context, version 00,
// without an id of zeros.
func isTraceparent(s string) bool {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	for _, id := range []string{s[3:35], s[36:52], s[53:]} {
		if strings.Trim(id, "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// begins records the stream and the client of a request that Options.Host has accepted.
func (c *called) begins(call sessions.Resumable) {
	if name := call.Client(); name != "" {
		c.client = name
	}
	if call.Stored() {
		c.stream = call.Stream()
	}
}

// ends records the outcome of a call from its response. If show is true, the log line may repeat
// what the server answered.
func (c *called) ends(raw []byte, show bool) {
	var failed bool
	if failed, c.why = sessions.FailureOf(raw, show); failed {
		c.outcome = observe.Failed
	} else {
		c.outcome = observe.Done
	}
	c.said.Response = raw
}

// answered records that a request got an error as its answer.
func (c *called) answered(answer *wire.Error) {
	c.outcome, c.why = observe.Failed, answer.Message
}

// tell adds to an event what is known of the client and the call. The argument err is the error
// of the request, and the argument from is its sender.
func (c *called) tell(ctx context.Context, e *observe.Event, from sender, err error) {
	e.Client, e.Parent, e.Protocol, e.Refusal = c.client, c.parent, wire.Clip(c.version), refusalOf(err)
	if c.tool != "" || c.said.Stream != "" && c.said.Response != nil {
		c.said.Stream = cmp.Or(c.said.Stream, c.stream)
		e.Said = &c.said
	}
	if e.Refusal != "" || c.tool != "" {
		e.Caller = from.caller(err)
	}
	if p, ok := errors.AsType[*problem](err); ok && p.operator || c.tool == "" && (e.Refusal != "" || storage.IsForOperator(err)) {
		e.Refused, e.Why = true, reason(problemOf(err).rpc.Message)
		return
	}
	e.Tool, e.Outcome, e.Why = wire.Clip(c.tool), c.outcome, reason(c.why)
	switch {
	case c.tool == "":
		if e.Stream = c.stream; e.Stream == "" { // a stream and an outcome report the end of an earlier request's call
			e.Outcome = ""
		} else if e.Outcome == "" {
			e.Stream = ""
		}
	case e.Refusal != "":
		e.Outcome, e.Why = observe.Refused, reason(problemOf(err).rpc.Message)
	case c.outcome != "":
		if c.again {
			e.Stream = c.stream
		}
	case err != nil:
		e.Outcome, e.Why = observe.Failed, reason(problemOf(err).rpc.Message)
	case ctx.Err() != nil && c.stream == "":
		e.Outcome, e.Why = observe.Failed, clientGone
	default:
		e.Outcome, e.Stream = observe.Open, c.stream
	}
}

// maxWhy is the longest reason in a log line, in bytes.
const maxWhy = 500

func reason(why string) string {
	why, _, _ = strings.Cut(strings.TrimSpace(why), "\n")
	if len(why) > maxWhy {
		return strings.ToValidUTF8(why[:maxWhy], "") + "… (" + strconv.Itoa(len(why)) + " bytes)"
	}
	return why
}
