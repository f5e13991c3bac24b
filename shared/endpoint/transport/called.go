package transport

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// called is what the log line of a request says about its client, and about the call of a
// tool.
type called struct {
	client  string           // the name that the client gave itself
	tool    string           // "" if the request calls no tool
	stream  storage.StreamID // of the call, "" if the call has no log
	outcome string           // outcomeDone or outcomeFailed; "" if the end was not seen
	why     string           // why it failed; "" if the log line must not show the reason
	parent  string           // traceparent of the client's span, "" for none
	version string           // of the protocol, as the client's header says; "" for none
}

// The outcomes of a call in a log line.
const (
	outcomeDone    = "done"
	outcomeFailed  = "failed"
	outcomeRefused = "refused" // the caller may not make the call, or a limit of the caller is used up
	outcomeOpen    = "open"    // the call goes on after the request; a later line has its end
)

// asks reads what a client has sent.
func (c *called) asks(msgs []wire.Message) {
	i := slices.IndexFunc(msgs, func(m wire.Message) bool { return m.Kind == wire.Request })
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
	}
}

// headed reads the headers of a request. A traceparent in a message takes precedence over
// the header, because one HTTP request may carry messages of several spans.
func (c *called) headed(h http.Header) {
	if parent := h.Get("traceparent"); c.parent == "" && isTraceparent(parent) {
		c.parent = parent
	}
	c.version = h.Get(wire.HeaderProtocolVersion)
}

// reads reads the messages and the headers of a request. It returns the request with a
// context as of in.
func (c *called) reads(r *http.Request, msgs []wire.Message) *http.Request {
	c.asks(msgs)
	c.headed(r.Header)
	return r.WithContext(c.in(r.Context()))
}

// in returns a context whose trace names the trace of the client's span.
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

// begins notes the stream and the client of a request that the host has accepted.
func (c *called) begins(call sessions.Resumable) {
	if name := call.Client(); name != "" {
		c.client = name
	}
	if call.Stored() {
		c.stream = call.Stream()
	}
}

// ends reads the response of a call. show says that the line may repeat what the server
// answered.
func (c *called) ends(raw []byte, show bool) {
	var failed bool
	if failed, c.why = sessions.FailureOf(raw, show); failed {
		c.outcome = outcomeFailed
	} else {
		c.outcome = outcomeDone
	}
}

// attrs returns the attributes for a log line. err is the error of the request, and from
// says who sent it.
func (c *called) attrs(ctx context.Context, from sender, err error) []slog.Attr {
	principal, refusal := from.who.Principal, refusalOf(err)
	attrs := make([]slog.Attr, 0, 8)
	if principal != "" {
		attrs = append(attrs, slog.String("principal", principal))
	}
	if c.client != "" {
		attrs = append(attrs, slog.String("client", c.client))
	}
	if c.parent != "" {
		attrs = append(attrs, slog.String("traceparent", c.parent))
	}
	if c.version != "" {
		attrs = append(attrs, slog.String("protocol", wire.Clip(c.version)))
	}
	outcome, why := c.outcome, c.why
	if refusal != "" {
		attrs = append(attrs, slog.String("refusal", refusal))
	}
	if refusal != "" || c.tool != "" {
		attrs = append(attrs, from.attr(err))
	}
	var p *problem
	if errors.As(err, &p) && p.operator || c.tool == "" && (refusal != "" || storage.IsForOperator(err)) {
		return withReason(append(attrs, slog.Bool("refused", true)), problemOf(err).rpc.Message)
	}
	if c.tool == "" {
		if outcome != "" && c.stream != "" { // the end of a call that an earlier request began
			attrs = append(attrs, slog.String("stream", string(c.stream)), slog.String("outcome", outcome))
		}
		return withReason(attrs, why)
	}
	switch {
	case refusal != "":
		outcome, why = outcomeRefused, problemOf(err).rpc.Message
	case outcome != "":
	case err != nil:
		outcome, why = outcomeFailed, problemOf(err).rpc.Message
	case ctx.Err() != nil && c.stream == "":
		outcome, why = outcomeFailed, clientGone
	default:
		outcome = outcomeOpen
		attrs = append(attrs, slog.String("stream", string(c.stream)))
	}
	return withReason(append(attrs, slog.String("tool", wire.Clip(c.tool)), slog.String("outcome", outcome)), why)
}

// maxWhy is the longest reason in a log line, in bytes.
const maxWhy = 500

func withReason(attrs []slog.Attr, why string) []slog.Attr {
	why, _, _ = strings.Cut(strings.TrimSpace(why), "\n")
	if why == "" {
		return attrs
	}
	if len(why) > maxWhy {
		why = strings.ToValidUTF8(why[:maxWhy], "") + "… (" + strconv.Itoa(len(why)) + " bytes)"
	}
	return append(attrs, slog.String("why", why))
}
