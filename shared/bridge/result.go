package bridge

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// How long a client may keep what servers of the legacy era say nothing about. It
// hears of changes before that on a listen stream. A resource may change with any
// read.
const (
	discoverFresh = time.Hour
	listFresh     = 5 * time.Minute
)

// Result is what a legacy server's result becomes: complete, with the fields that
// caching needs where the method has them, and the name of the server (nil if it
// is not known).
func Result(method string, result, server json.RawMessage) json.RawMessage {
	o, ok := objectOf(result)
	if !ok {
		o = object{{"value", result}} // no server of MCP answers so
	}
	o = o.with("resultType", text(wire.ResultComplete))
	if fresh, cached := freshness(method); cached {
		if o.get("ttlMs") == nil {
			o = o.with("ttlMs", strconv.AppendInt(nil, fresh.Milliseconds(), 10))
		}
		if o.get("cacheScope") == nil {
			// What one caller sees may not be what another does.
			o = o.with("cacheScope", text("private"))
		}
	}
	return o.withMeta(wire.MetaServerInfo, server).encode()
}

// freshness says how long results of a method may be kept, if at all.
func freshness(method string) (fresh time.Duration, cached bool) {
	switch method {
	case wire.MethodDiscover:
		return discoverFresh, true
	case wire.MethodToolsList, wire.MethodPromptsList, wire.MethodResourcesList, wire.MethodResourceTemplatesList:
		return listFresh, true
	case wire.MethodResourcesRead:
		return 0, true
	default:
		return 0, false
	}
}

// withMeta sets a member of _meta, unless there is one.
func (o object) withMeta(key string, value json.RawMessage) object {
	if value == nil {
		return o
	}
	meta, _ := objectOf(o.get("_meta"))
	if meta.get(key) != nil {
		return o
	}
	return o.with("_meta", meta.with(key, value).encode())
}

// ServerInfo is what a server called itself in its result of initialize, nil if
// that says nothing.
func ServerInfo(handshake json.RawMessage) json.RawMessage {
	if info := wire.Lookup(handshake, "serverInfo"); isObject(info) {
		return info
	}
	return nil
}

// Discover is the result of server/discover of a server that answered this to
// initialize (MCP 2026-07-28, "Discovery"). tasks says that its calls may become tasks,
// which is our doing, whatever the server is.
func Discover(handshake json.RawMessage, tasks bool) json.RawMessage {
	capabilities, _ := objectOf(wire.Lookup(handshake, "capabilities"))
	if tasks {
		extensions, _ := objectOf(capabilities.get("extensions"))
		capabilities = capabilities.with("extensions", extensions.with(Tasks, json.RawMessage("{}")).encode())
	}
	o := object{
		{"resultType", text(wire.ResultComplete)},
		{"supportedVersions", versions()},
		// Tasks of 2025-11-25 are not those of the extension.
		{"capabilities", capabilities.without("tasks").encode()},
	}
	for _, key := range []string{"instructions", "ttlMs"} {
		if value := wire.Lookup(handshake, key); value != nil {
			o = append(o, member{key, value})
		}
	}
	return Result(wire.MethodDiscover, o.encode(), ServerInfo(handshake))
}

// Unknown stands in for the handshake of a server that has yet to start for the first
// time: a client that waited for that in server/discover would take it for one of the
// legacy era. It offers what servers have and is not to be kept; what the server turns
// out not to have, its lists are empty of ([Turn.Take]).
func Unknown() json.RawMessage {
	return json.RawMessage(`{"capabilities":{"tools":{},"prompts":{},"resources":{},"completions":{},"logging":{}},"ttlMs":0}`)
}

// nothing is the empty result of a list, nil for other methods.
func nothing(method string) json.RawMessage {
	switch method {
	case wire.MethodToolsList:
		return json.RawMessage(`{"tools":[]}`)
	case wire.MethodPromptsList:
		return json.RawMessage(`{"prompts":[]}`)
	case wire.MethodResourcesList:
		return json.RawMessage(`{"resources":[]}`)
	case wire.MethodResourceTemplatesList:
		return json.RawMessage(`{"resourceTemplates":[]}`)
	default:
		return nil
	}
}

// Versions are those a client may speak, newest first.
func Versions() []string { return append([]string{wire.V20260728}, wire.LegacyVersions()...) }

func versions() json.RawMessage {
	out, err := json.Marshal(Versions())
	if err != nil { // strings always encode
		panic("bridge: versions that cannot be encoded: " + err.Error())
	}
	return out
}

// Fault is the error object of a legacy server as a modern client gets it. A
// resource that is not there is no longer a code of its own, and our own code for
// what was cancelled is not one of the protocol.
func Fault(fault json.RawMessage) (out json.RawMessage, code wire.Code) {
	n, err := strconv.Atoi(string(wire.Lookup(fault, "code")))
	code = wire.Code(n)
	switch {
	case err != nil:
		return fault, wire.CodeInternal
	case code == wire.CodeResourceNotFound:
		code = wire.CodeInvalidParams
	case code == wire.CodeCancelled:
		code = wire.CodeInternal
	default:
		return fault, code
	}
	out, _ = wire.Replace(fault, strconv.AppendInt(nil, int64(code), 10), "code")
	return out, code
}

// faultResponse is a response around an error object as it is.
func faultResponse(id, fault json.RawMessage) []byte {
	return object{{"jsonrpc", text("2.0")}, {"id", id}, {"error", fault}}.encode()
}
