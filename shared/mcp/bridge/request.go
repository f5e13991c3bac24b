package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// metaPrefix begins the keys of _meta that belong to the modern protocol. A legacy server
// does not get these keys.
const metaPrefix = "io.modelcontextprotocol/"

func isModern(metaKey string) bool { return strings.HasPrefix(metaKey, metaPrefix) }

// JSON members of a request that is sent again with answers, and of its results.
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
	Capabilities json.RawMessage
	Client       json.RawMessage // the object clientInfo, nil if the request has none
	LogLevel     string          // "" if the client wants no log messages
	Token        json.RawMessage // the progress token, nil for none
	Responses    json.RawMessage // the object inputResponses, nil for none
	State        string          // requestState, "" if the request has none
	Round        int             // how often the call was made before, because its server wanted something of the client first

	// passed means that the server itself has answered the request with inputRequests, and that the
	// client got these unchanged. own is the requestState in that answer, nil for none.
	passed bool
	own    json.RawMessage
}

// ReadRequest reads the members that the modern era requires in a request. Errors are
// *[wire.Error] with [wire.CodeInvalidParams].
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

// readRound reads inputResponses and requestState, with which a client sends a request again.
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

// Rounds reports whether the method may be answered with input requests (MCP 2026-07-28,
// "Multi Round-Trip Requests").
func (r Request) Rounds() bool { return rounds(r.Method) }

func rounds(method string) bool {
	return method == wire.MethodToolsCall || method == wire.MethodPromptsGet || method == wire.MethodResourcesRead
}

// Forward returns the params for a modern server, nil for none. For a legacy server the caller must
// also [Strip] them.
//
// A call that may become a task reaches the server as if from a legacy client. The server's questions are
// therefore in the log ([Legacy.Ask]), where tasks/get finds them.
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

// mayBeTask reports whether the request is a tools/call of a client that declares tasks
// (extension io.modelcontextprotocol/tasks).
func (r Request) mayBeTask() bool {
	return r.Method == wire.MethodToolsCall && r.KnowsTasks()
}

// SaysModern reports whether params come from a modern client: in one of its requests, or in an
// initialize that [Superset] has made.
func SaysModern(params json.RawMessage) bool {
	version, _ := wire.String(wire.Lookup(params, "_meta", wire.MetaProtocolVersion))
	return version != "" && !wire.Legacy(version)
}

// Strip returns the params of a modern client's request without the members that a legacy
// server does not know, nil for none.
func Strip(method string, raw json.RawMessage) json.RawMessage {
	params, ok := objectOf(raw)
	if !ok {
		return nil
	}
	if rounds(method) {
		params = params.without(inputResponses, requestState)
	}
	params = params.withoutMeta(isModern)
	if len(params) == 0 {
		return nil
	}
	return params.encode()
}

// Offered reports whether a modern client's request with a method goes to a server. It is
// false for methods that modern MCP does not have, that only servers send, or that are
// answered without a server (server/discover, subscriptions/listen). It is also false for the
// methods of extensions; see [wire.OfExtension].
func Offered(method string) bool {
	switch method {
	case wire.MethodToolsList, wire.MethodToolsCall, wire.MethodPromptsList, wire.MethodPromptsGet, wire.MethodResourcesList,
		wire.MethodResourceTemplatesList, wire.MethodResourcesRead, wire.MethodComplete:
		return true
	default:
		return false
	}
}

// HeaderName returns the value that the header Mcp-Name must have. wanted is false for methods without
// that header.
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

// Superset returns the params of initialize for a process that serves modern clients. The params
// declare all capabilities that clients of MCP can have. Turn refuses questions that need a capability
// which the request has not declared. client is clientInfo, nil for none. _meta marks the params for
// [SaysModern] and does not reach the server.
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

// CheckLevel returns the error for a level that log messages cannot have, a *[wire.Error] with
// [wire.CodeInvalidParams].
func CheckLevel(level string) error {
	if severity(level) < 0 {
		return invalid("there is no log level %q; send one of %s", level, strings.Join(levels(), ", "))
	}
	return nil
}

// levels returns the levels of log messages, the least important first (RFC 5424).
func levels() []string {
	return []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
}

func severity(level string) int { return slices.Index(levels(), level) }

// isID reports whether a value is a string or an integer.
func isID(raw json.RawMessage) bool {
	if _, ok := wire.String(raw); ok {
		return true
	}
	return len(raw) > 0 && strings.Trim(string(raw), "-0123456789") == ""
}

func invalid(format string, args ...any) *wire.Error {
	return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}
