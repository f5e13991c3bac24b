package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// metaPrefix begins the keys of _meta that are the modern protocol's own, which a
// legacy server is not told.
const metaPrefix = "io.modelcontextprotocol/"

// Members of params, and of results, of a request in several rounds.
const (
	inputResponses = "inputResponses"
	inputRequests  = "inputRequests"
	requestState   = "requestState"
)

// Request is a request of a modern client, read and checked (MCP 2026-07-28,
// basic, "_meta").
type Request struct {
	wire.Message
	Version      string
	Capabilities json.RawMessage // the object clientCapabilities
	Client       json.RawMessage // the object clientInfo, nil if the client did not say
	LogLevel     string          // "" if it wants no log messages
	Token        json.RawMessage // its progress token, nil for none
	Responses    json.RawMessage // the object inputResponses, nil for none
	State        string          // requestState, "" in the first round

	// passed says that the round before was passed on as the server answered it, and
	// own is the requestState it gave then, nil for none.
	passed bool
	own    json.RawMessage
}

// ReadRequest reads what the modern era wants in a request. Errors are *[wire.Error]
// with [wire.CodeInvalidParams].
func ReadRequest(m wire.Message) (Request, error) {
	r := Request{Message: m}
	meta := wire.Lookup(m.Params, "_meta")
	var ok bool
	if r.Version, ok = wire.String(wire.Lookup(meta, wire.MetaProtocolVersion)); !ok {
		return r, invalid("params._meta has no %q; send the protocol version as a string", wire.MetaProtocolVersion)
	}
	if r.Capabilities = wire.Lookup(meta, wire.MetaClientCapabilities); !isObject(r.Capabilities) {
		return r, invalid("params._meta has no %q; send an object, {} for no capabilities", wire.MetaClientCapabilities)
	}
	if r.Client = wire.Lookup(meta, wire.MetaClientInfo); r.Client != nil && !isObject(r.Client) {
		return r, invalid("params._meta member %q must be an object", wire.MetaClientInfo)
	}
	if level := wire.Lookup(meta, wire.MetaLogLevel); level != nil {
		if r.LogLevel, ok = wire.String(level); !ok || severity(r.LogLevel) < 0 {
			return r, invalid("params._meta member %q must be one of %s", wire.MetaLogLevel, strings.Join(levels(), ", "))
		}
	}
	if r.Token = wire.Lookup(meta, wire.MetaProgressToken); r.Token != nil && !isID(r.Token) {
		return r, invalid("params._meta member %q must be a string or an integer", wire.MetaProgressToken)
	}
	return r, r.readRound()
}

// readRound reads what a retry brings.
func (r *Request) readRound() error {
	if !r.Rounds() {
		return nil
	}
	if r.Responses = wire.Lookup(r.Params, inputResponses); r.Responses != nil && !isObject(r.Responses) {
		return invalid("params.%s must be an object with an answer for each key", inputResponses)
	}
	state := wire.Lookup(r.Params, requestState)
	if state == nil {
		return nil
	}
	var ok bool
	if r.State, ok = wire.String(state); !ok || r.State == "" {
		return invalid("params.%s must be the string that came with the input requests", requestState)
	}
	return nil
}

// Rounds says that the method may be answered with input requests (MCP 2026-07-28,
// "Multi Round-Trip Requests").
func (r Request) Rounds() bool {
	return r.Method == wire.MethodToolsCall || r.Method == wire.MethodPromptsGet || r.Method == wire.MethodResourcesRead
}

// Forward is what goes to the server as params, nil for none: what the client said,
// for a server that is spoken to in this era; for one of the legacy era somebody has
// yet to take out what that does not know ([Strip]). Of a call that may become a task
// it is taken out here: its rounds have to be in the log, so that its server is asked
// in the place of a legacy client ([Legacy.Ask]).
func (r Request) Forward() json.RawMessage {
	if r.mayBeTask() {
		return Strip(r.Method, r.Params)
	}
	params, ok := objectOf(r.Params)
	if !ok || r.State == "" {
		return r.Params
	}
	params = params.without(requestState)
	switch {
	case !r.passed:
		params = params.without(inputResponses)
	case r.own != nil:
		params = params.with(requestState, r.own)
	}
	return params.encode()
}

// mayBeTask says that the client knows tasks (extension io.modelcontextprotocol/tasks).
func (r Request) mayBeTask() bool {
	return r.Method == wire.MethodToolsCall && r.KnowsTasks()
}

// SaysModern says that the params of a request, or those of initialize that [Superset]
// made, are of a modern client.
func SaysModern(params json.RawMessage) bool {
	version, _ := wire.String(wire.Lookup(params, "_meta", wire.MetaProtocolVersion))
	return version != "" && !wire.Legacy(version)
}

// Strip takes out of the params of a modern client's request what a legacy server
// does not know. nil for none.
func Strip(method string, raw json.RawMessage) json.RawMessage {
	params, ok := objectOf(raw)
	if !ok {
		return nil
	}
	if rounds(method) {
		params = params.without(inputResponses, requestState)
	}
	if meta, ok := objectOf(params.get("_meta")); ok {
		meta = slices.DeleteFunc(meta, func(m member) bool { return strings.HasPrefix(m.key, metaPrefix) })
		if params = params.without("_meta"); len(meta) > 0 {
			params = params.with("_meta", meta.encode())
		}
	}
	if len(params) == 0 {
		return nil
	}
	return params.encode()
}

// Offered says whether a method of a modern client is passed on to a server. What
// the modern era has taken away is not, nor what only servers ask, nor what is
// answered without a server (discover, listen). A method that nobody here knows is
// not either: not every legacy server answers to one, and some do so with a code
// that says something else.
func Offered(method string) bool {
	switch method {
	case wire.MethodToolsList, wire.MethodToolsCall, wire.MethodPromptsList, wire.MethodPromptsGet, wire.MethodResourcesList,
		wire.MethodResourceTemplatesList, wire.MethodResourcesRead, wire.MethodComplete:
		return true
	default:
		return false
	}
}

// HeaderName is what Mcp-Name has to repeat; wanted is false for methods without.
func HeaderName(m wire.Message) (name string, wanted bool) {
	switch m.Method {
	case wire.MethodToolsCall, wire.MethodPromptsGet:
		return wire.String(wire.Lookup(m.Params, "name"))
	case wire.MethodResourcesRead:
		return wire.String(wire.Lookup(m.Params, "uri"))
	case wire.MethodTasksGet, wire.MethodTasksUpdate, wire.MethodTasksCancel:
		return wire.String(wire.Lookup(m.Params, "taskId"))
	}
	return "", false
}

// Superset is what a server is told in initialize of a client that has said
// nothing yet: all that clients can do. Each request is held to what it declares.
// client is clientInfo, nil for none. _meta says whose it is ([SaysModern]), and does
// not reach the server.
func Superset(client json.RawMessage) json.RawMessage {
	if client == nil {
		client = json.RawMessage(`{"name":"dormouse","version":"1"}`)
	}
	return object{
		{"protocolVersion", text(wire.V20251125)},
		{"capabilities", json.RawMessage(`{"roots":{},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`)},
		{"clientInfo", client},
		{"_meta", object{{wire.MetaProtocolVersion, text(wire.V20260728)}}.encode()},
	}.encode()
}

// levels are those of log messages, the least important first (RFC 5424).
func levels() []string {
	return []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
}

// severity is the place of a level among them, -1 for what is none.
func severity(level string) int { return slices.Index(levels(), level) }

// isID says that a value is a string or an integer.
func isID(raw json.RawMessage) bool {
	if _, ok := wire.String(raw); ok {
		return true
	}
	return len(raw) > 0 && strings.Trim(string(raw), "-0123456789") == ""
}

func invalid(format string, args ...any) *wire.Error {
	return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}
