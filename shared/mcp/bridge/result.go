package bridge

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// How long a client may cache results of a legacy server, which names no time itself. Contents of
// resources must not be cached.
const (
	discoverFresh = time.Hour
	listFresh     = 5 * time.Minute
)

// Result returns a legacy server's result in the form of the modern era: with resultType, with the
// serverInfo in _meta, and with ttlMs and cacheScope if the method has them. resultType is "complete",
// but a result of an extension's method keeps its own resultType. server is serverInfo, nil if
// unknown.
func Result(method string, result, server json.RawMessage) json.RawMessage {
	o, ok := objectOf(result)
	if !ok {
		o = object{{"value", result}} // MCP allows only objects as results
	}
	if kind, _ := wire.String(o.get("resultType")); kind == "" || !wire.OfExtension(method) {
		o = o.with("resultType", text(wire.ResultComplete))
	}
	if fresh, cached := freshness(method); cached {
		if o.get("ttlMs") == nil {
			o = o.with("ttlMs", number(fresh.Milliseconds()))
		}
		if o.get("cacheScope") == nil {
			// The result is private, because another caller may get another result.
			o = o.with("cacheScope", text("private"))
		}
	}
	return o.withMeta(wire.MetaServerInfo, server).encode()
}

// freshness returns how long results of a method may be kept, if at all.
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

// withMeta adds a member to _meta, unless value is nil or _meta has the key.
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

// withoutMeta returns the object without those members of _meta whose key the function drop selects. It
// leaves out an empty _meta.
func (o object) withoutMeta(drop func(key string) bool) object {
	meta, ok := objectOf(o.get("_meta"))
	if !ok {
		return o
	}
	if meta = slices.DeleteFunc(meta, func(m member) bool { return drop(m.key) }); len(meta) == 0 {
		return o.without("_meta")
	}
	return o.with("_meta", meta.encode())
}

// ServerInfo returns the serverInfo of a result of initialize, nil if there is none.
func ServerInfo(handshake json.RawMessage) json.RawMessage {
	if info := wire.Lookup(handshake, "serverInfo"); isObject(info) {
		return info
	}
	return nil
}

// Discover returns the result of server/discover for a server, made from its result of
// initialize (MCP 2026-07-28, "Discovery"). The argument tasks says that calls may become
// tasks.
func Discover(handshake json.RawMessage, tasks bool) json.RawMessage {
	capabilities, _ := objectOf(wire.Lookup(handshake, "capabilities"))
	capabilities = withoutTasks(capabilities)
	if tasks {
		extensions, _ := objectOf(capabilities.get("extensions"))
		capabilities = capabilities.with("extensions", extensions.with(Tasks, json.RawMessage("{}")).encode())
	}
	o := object{
		{"resultType", text(wire.ResultComplete)},
		{"supportedVersions", texts(Versions())},
		// The tasks of 2025-11-25 are not the tasks of the extension.
		{"capabilities", capabilities.without("tasks").encode()},
	}
	said, _ := objectOf(handshake)
	o = append(o, said.without("resultType", "supportedVersions", "protocolVersion", "capabilities", "serverInfo")...)
	return Result(wire.MethodDiscover, o.encode(), ServerInfo(handshake))
}

// Unknown returns a result of initialize for a server that has never started. A client that
// waited for the start might take the server for a legacy one. Unknown offers what servers
// usually have, and its ttlMs of 0 forbids clients to cache it. The lists of a feature that the
// server lacks are empty ([Turn.Take]).
func Unknown() json.RawMessage {
	return json.RawMessage(`{"capabilities":{"tools":{},"prompts":{},"resources":{},"completions":{},"logging":{}},"ttlMs":0}`)
}

// nothing returns the empty result of a list method, nil for other methods.
func nothing(method string) json.RawMessage {
	l, ok := wire.ListOf(method)
	if !ok {
		return nil
	}
	return json.RawMessage(`{"` + l.Entries + `":[]}`)
}

// Versions returns the versions that a client may speak, newest first.
func Versions() []string { return append([]string{wire.V20260728}, wire.LegacyVersions()...) }

// Fault returns a legacy server's error object in the form of the modern era, and its code. Modern
// MCP has no code for a missing resource. The code for a cancelled request is Dormouse's own.
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
