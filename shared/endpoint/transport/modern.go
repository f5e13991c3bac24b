package transport

import (
	"context"
	"net/http"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// modern is a request of the modern era (MCP 2026-07-28) at the server that it is for. Package
// bridge and Host.Send translate the request; modern adds the HTTP part. A session id and a
// Last-Event-ID are ignored, and never sent.
type modern struct {
	x   *exchange
	ctx context.Context
	req bridge.Request
	to  sessions.Dispatched
}

func newModern(x *exchange, ctx context.Context, req bridge.Request, to sessions.Dispatched) modern {
	req.Message = to.Message
	if !x.servesTasks(to.Caller) {
		req = req.WithoutTasks()
	}
	if x.opts.Sealer == nil {
		req = req.WithoutQuestions()
	}
	return modern{x, ctx, req, to}
}

// checkHeaders compares the headers that repeat parts of the body with the body (MCP
// 2026-07-28, basic/transports, "Standard Headers").
func checkHeaders(h http.Header, msg wire.Message) error {
	once := func(name string) bool { return len(h.Values(name)) <= 1 }
	version, _ := wire.String(wire.Lookup(msg.Params, "_meta", wire.MetaProtocolVersion))
	got := h.Get(wire.HeaderProtocolVersion)
	if got == "" || version != "" && got != version || !once(wire.HeaderProtocolVersion) {
		return mismatch(wire.HeaderProtocolVersion, "_meta."+wire.MetaProtocolVersion)
	}
	if h.Get(wire.HeaderMethod) != msg.Method || !once(wire.HeaderMethod) {
		return mismatch(wire.HeaderMethod, "method")
	}
	name, wanted := bridge.HeaderName(msg)
	if header := h.Get(wire.HeaderName); wanted || header != "" && hasName(msg.Method) {
		decoded, ok := wire.DecodeHeaderValue(header)
		// go-sdk 1.8 does not encode text that needs encoding, so plain text counts, too.
		same := ok && decoded == name || header == name
		if !same || !once(wire.HeaderName) {
			return mismatch(wire.HeaderName, "params")
		}
	}
	for header, values := range h {
		if !strings.HasPrefix(header, http.CanonicalHeaderKey(wire.HeaderParamPrefix)) {
			continue
		}
		// Only the tool's schema says which argument the header repeats; modern.check compares the
		// two.
		if _, ok := wire.DecodeHeaderValue(values[0]); !ok || len(values) > 1 {
			return mismatch(header, "params.arguments")
		}
	}
	return nil
}

// hasName reports whether Mcp-Name repeats a name in the params of a method.
func hasName(method string) bool {
	switch method {
	case wire.MethodToolsCall, wire.MethodPromptsGet, wire.MethodResourcesRead:
		return true
	default:
		return bridge.IsTaskMethod(method)
	}
}

func mismatch(header, member string) error {
	return refusal(http.StatusBadRequest, storage.Invalid, wire.CodeHeaderMismatch,
		"header "+wire.Clip(header)+" must be sent once and say the same as "+member+" in the body")
}

// seen returns a message of the server as the client gets it; see [sessions.Dispatched].
func (m modern) seen(raw []byte) []byte {
	if m.to.View == nil {
		return raw
	}
	return m.to.View(raw)
}

// client returns what the request says about its client, for methods of [sessions.Manager].
func (m modern) client() sessions.Client {
	return sessions.Client{Init: m.req.Init(), Verbose: m.req.LogLevel != "", Visits: wire.Lookup(m.req.Capabilities, "elicitation", "url") != nil}
}

func (m modern) servesTasks() bool { return m.x.servesTasks(m.to.Caller) }

func (x *exchange) servesTasks(c sessions.Caller) bool {
	return x.opts.Sealer != nil && c.Server.Tasks != sessions.TasksOff
}
