package bridge

import (
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// This file connects a legacy client with a server that speaks the modern era only. A modern server gets
// with every request what a legacy server gets once, in initialize.

// Legacy is what a legacy client says about itself in initialize.
type Legacy struct {
	version      string
	client       json.RawMessage // clientInfo, nil for none
	capabilities object
}

// ReadLegacy reads the params of a client's initialize. It treats a malformed member as a
// missing one.
func ReadLegacy(initialize json.RawMessage) Legacy {
	var l Legacy
	l.version, _ = wire.String(wire.Lookup(initialize, "protocolVersion"))
	if info := wire.Lookup(initialize, "clientInfo"); isObject(info) {
		l.client = info
	}
	l.capabilities, _ = objectOf(wire.Lookup(initialize, "capabilities"))
	return l
}

// modern returns the client's capabilities in the form of the modern era.
func (l Legacy) modern() json.RawMessage {
	o := withoutTasks(l.capabilities.without("tasks"))
	if roots, ok := objectOf(o.get("roots")); ok {
		o = o.with("roots", roots.without("listChanged").encode())
	}
	if modes, ok := objectOf(o.get("elicitation")); ok && len(modes) == 0 {
		o = o.with("elicitation", json.RawMessage(`{"form":{}}`))
	}
	return o.encode()
}

// Params returns the params of a client's request as a modern server gets them: with what the server
// needs to know about the client in _meta. level is the log level that the client has set last; Params
// leaves out one that MCP does not have. If resent is false, Params removes inputResponses and
// requestState, which [Retry] and [Again] add.
func (l Legacy) Params(method string, params json.RawMessage, level string, resent bool) json.RawMessage {
	o, _ := objectOf(params)
	if method == wire.MethodToolsCall {
		o = o.without("task") // it asks for a task of 2025-11-25, a capability that Initialize does not offer
	}
	if !resent && rounds(method) {
		o = o.without(inputResponses, requestState)
	}
	return o.with("_meta", l.meta(o.get("_meta"), level)).encode()
}

func (l Legacy) meta(own json.RawMessage, level string) json.RawMessage {
	o, _ := objectOf(own)
	o = slices.DeleteFunc(o, func(m member) bool { return isModern(m.key) })
	o = append(o,
		member{wire.MetaProtocolVersion, text(wire.V20260728)},
		member{wire.MetaClientCapabilities, l.modern()},
	)
	if l.client != nil {
		o = append(o, member{wire.MetaClientInfo, l.client})
	}
	if severity(level) >= 0 {
		o = append(o, member{wire.MetaLogLevel, text(level)})
	}
	return o.encode()
}

// Initialized returns a legacy server's result of initialize for the client. If the server has
// named a newer version than the client asked for, at which the client would disconnect,
// Initialized names the client's version.
func (l Legacy) Initialized(result json.RawMessage) json.RawMessage {
	named, _ := wire.String(wire.Lookup(result, "protocolVersion"))
	if own := wire.Negotiate(l.version); wire.Legacy(named) && named > own {
		result, _ = wire.Replace(result, text(own), "protocolVersion")
	}
	return result
}

// Initialize returns the result of initialize for the client, from a server's result of
// server/discover.
func (l Legacy) Initialize(discover json.RawMessage) json.RawMessage {
	capabilities, _ := objectOf(wire.Lookup(discover, "capabilities"))
	info := wire.Lookup(discover, "_meta", wire.MetaServerInfo)
	if !isObject(info) {
		info = json.RawMessage(`{"name":"unknown","version":""}`)
	}
	o := object{
		{"protocolVersion", text(wire.Negotiate(l.version))},
		{"capabilities", withoutTasks(capabilities.without("tasks")).encode()},
		{"serverInfo", info},
	}
	said, _ := objectOf(discover)
	said = said.without("resultType", "supportedVersions", "ttlMs", "cacheScope", "protocolVersion", "capabilities", "serverInfo")
	return append(o, said.withoutMeta(isServerInfo)...).encode()
}

func isServerInfo(key string) bool { return key == wire.MetaServerInfo }

// Plain returns a modern server's result of a method in the form of the legacy era. In a result of an
// extension's method, ttlMs stays if there is no cacheScope, and the other way round: it belongs to the
// extension.
func Plain(method string, result json.RawMessage) json.RawMessage {
	o, ok := objectOf(result)
	if !ok {
		return result
	}
	o = o.without("resultType")
	if !wire.OfExtension(method) || o.get("ttlMs") != nil && o.get("cacheScope") != nil {
		o = o.without("ttlMs", "cacheScope")
	}
	return o.withoutMeta(isServerInfo).encode()
}

// PlainFault returns a modern server's error object in the form of the legacy era. The legacy
// era has a code of its own for a missing resource.
func PlainFault(method string, fault json.RawMessage) json.RawMessage {
	if method != wire.MethodResourcesRead || string(wire.Lookup(fault, "code")) != "-32602" {
		return fault
	}
	out, _ := wire.Replace(fault, json.RawMessage("-32002"), "code")
	return out
}

// Probe returns the request that finds out whether a server speaks the modern era (MCP 2026-07-28,
// stdio).
func Probe(id json.RawMessage) []byte {
	params := Legacy{client: json.RawMessage(`{"name":"dormouse","version":"1"}`)}.Params(wire.MethodDiscover, nil, "", false)
	return wire.NewRequest(id, wire.MethodDiscover, params)
}

// ReadProbe reports whether a response to [Probe] shows that the server speaks the modern era: with a
// result, or with the error that it does not support the version. It shows nothing about the legacy
// era: some servers that speak both list only the modern versions.
func ReadProbe(m wire.Message) bool {
	versions := wire.Lookup(m.Result, "supportedVersions")
	if m.Error != nil && string(wire.Lookup(m.Error, "code")) == "-32022" {
		versions = wire.Lookup(m.Error, "data", "supported")
	}
	var list []string
	return json.Unmarshal(versions, &list) == nil && slices.Contains(list, wire.V20260728)
}

// Listen returns the request with this id that asks a modern server for all notifications which its
// result of server/discover offers (MCP 2026-07-28, "Subscriptions"). It returns nil if the server
// offers none. uris are the resources to subscribe to.
func (l Legacy) Listen(id, discover json.RawMessage, uris []string) []byte {
	can := func(path ...string) bool {
		return string(wire.Lookup(discover, append([]string{"capabilities"}, path...)...)) == "true"
	}
	var filter object
	for _, kind := range []string{"tools", "prompts", "resources"} {
		if can(kind, "listChanged") {
			filter = append(filter, member{kind + "ListChanged", json.RawMessage("true")})
		}
	}
	if can("resources", "subscribe") && len(uris) > 0 {
		filter = append(filter, member{"resourceSubscriptions", texts(uris)})
	}
	if len(filter) == 0 {
		return nil
	}
	params := object{{"notifications", filter.encode()}}.encode()
	return wire.NewRequest(id, wire.MethodListen, l.Params(wire.MethodListen, params, "", false))
}

// PlainNotification returns a modern server's notification in the form of the legacy era, or
// nil for one that the era does not know.
func PlainNotification(m wire.Message) []byte {
	if m.Method == wire.NotifyAcknowledged || m.Method == wire.NotifyTasks {
		return nil
	}
	if wire.Lookup(m.Params, "_meta", wire.MetaSubscriptionID) == nil {
		return m.Raw
	}
	params, _ := objectOf(m.Params)
	params = params.withoutMeta(func(key string) bool { return key == wire.MetaSubscriptionID })
	if len(params) == 0 {
		return wire.NewNotification(m.Method, nil)
	}
	return wire.NewNotification(m.Method, params.encode())
}
