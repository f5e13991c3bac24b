package bridge

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// The other direction: a legacy client before a server that speaks the modern era
// only. The server is told with every request what initialize told once, and its
// results lose what a legacy client does not know.

// Legacy is a client of the legacy era, as a modern server is to be told of it.
type Legacy struct {
	version      string
	client       json.RawMessage // clientInfo, nil for none
	capabilities object          // as it declared them
}

// ReadLegacy reads the params of a client's initialize. Of what is not there, a
// client without capabilities is made.
func ReadLegacy(initialize json.RawMessage) Legacy {
	var l Legacy
	l.version, _ = wire.String(wire.Lookup(initialize, "protocolVersion"))
	if info := wire.Lookup(initialize, "clientInfo"); isObject(info) {
		l.client = info
	}
	l.capabilities, _ = objectOf(wire.Lookup(initialize, "capabilities"))
	return l
}

// modern are the client's capabilities in the words of the modern era.
func (l Legacy) modern() json.RawMessage {
	o := l.capabilities.without("tasks", "extensions")
	if roots, ok := objectOf(o.get("roots")); ok {
		o = o.with("roots", roots.without("listChanged").encode())
	}
	if modes, ok := objectOf(o.get("elicitation")); ok && len(modes) == 0 {
		o = o.with("elicitation", json.RawMessage(`{"form":{}}`))
	}
	return o.encode()
}

// Params are those of a client's request as a modern server gets them: with all it
// has to be told of the client. level is the last one the client has set, "" for
// none. In a later round of a suspended call they keep what [Again] has put there;
// a client that says so by itself is not heard.
func (l Legacy) Params(method string, params json.RawMessage, level string, later bool) json.RawMessage {
	o, _ := objectOf(params)
	o = o.without("task") // of 2025-11-25, which was not offered
	if !later && rounds(method) {
		o = o.without(inputResponses, requestState)
	}
	return o.with("_meta", l.meta(o.get("_meta"), level)).encode()
}

func (l Legacy) meta(own json.RawMessage, level string) json.RawMessage {
	o, _ := objectOf(own)
	o = slices.DeleteFunc(o, func(m member) bool { return strings.HasPrefix(m.key, metaPrefix) })
	o = append(o,
		member{wire.MetaProtocolVersion, text(wire.V20260728)},
		member{wire.MetaClientCapabilities, l.modern()},
	)
	if l.client != nil {
		o = append(o, member{wire.MetaClientInfo, l.client})
	}
	if level != "" {
		o = append(o, member{wire.MetaLogLevel, text(level)})
	}
	return o.encode()
}

// rounds says that a method may be answered with input requests.
func rounds(method string) bool {
	return Request{Message: wire.Message{Method: method}}.Rounds()
}

// Initialize is the result of initialize, before a server that answered this to
// server/discover. Whatever version the client asked for, it is spoken here.
func (l Legacy) Initialize(discover json.RawMessage) json.RawMessage {
	capabilities, _ := objectOf(wire.Lookup(discover, "capabilities"))
	info := wire.Lookup(discover, "_meta", wire.MetaServerInfo)
	if !isObject(info) {
		info = json.RawMessage(`{"name":"unknown","version":""}`)
	}
	o := object{
		{"protocolVersion", text(wire.Negotiate(l.version))},
		{"capabilities", capabilities.without("tasks", "extensions").encode()},
		{"serverInfo", info},
	}
	if instructions := wire.Lookup(discover, "instructions"); instructions != nil {
		o = append(o, member{"instructions", instructions})
	}
	return o.encode()
}

// Plain is a modern server's result as a legacy client gets it.
func Plain(result json.RawMessage) json.RawMessage {
	o, ok := objectOf(result)
	if !ok {
		return result
	}
	o = o.without("resultType", "ttlMs", "cacheScope")
	if meta, ok := objectOf(o.get("_meta")); ok {
		meta = meta.without(wire.MetaServerInfo)
		if o = o.without("_meta"); len(meta) > 0 {
			o = o.with("_meta", meta.encode())
		}
	}
	return o.encode()
}

// PlainFault is a modern server's error object as a legacy client gets it: it has a
// code of its own for a resource that is not there.
func PlainFault(method string, fault json.RawMessage) json.RawMessage {
	if method != wire.MethodResourcesRead || string(wire.Lookup(fault, "code")) != "-32602" {
		return fault
	}
	out, _ := wire.Replace(fault, json.RawMessage("-32002"), "code")
	return out
}

// Probe is the request that finds out the era of a server (MCP 2026-07-28, stdio).
func Probe(id json.RawMessage) []byte {
	params := Legacy{client: json.RawMessage(`{"name":"dormouse","version":"1"}`)}.Params(wire.MethodDiscover, nil, "", false)
	return wire.NewRequest(id, wire.MethodDiscover, params)
}

// Era is what a server speaks.
type Era string

// The eras of a server. One that speaks both is spoken to in its client's, which
// is the legacy one in a process.
const (
	LegacyOnly Era = "legacy"
	ModernOnly Era = "modern"
	DualEra    Era = "dual"
)

// ReadProbe says what a server's response to [Probe] tells of its era. Only a
// server of the modern era answers it with a result, or knows that it does not
// speak the version.
func ReadProbe(m wire.Message) Era {
	var versions json.RawMessage
	switch {
	case isObject(m.Result) && wire.Lookup(m.Result, "supportedVersions") != nil:
		versions = wire.Lookup(m.Result, "supportedVersions")
	case m.Error != nil && string(wire.Lookup(m.Error, "code")) == "-32022":
		versions = wire.Lookup(m.Error, "data", "supported")
	default:
		return LegacyOnly
	}
	var list []string
	if json.Unmarshal(versions, &list) != nil || !slices.Contains(list, wire.V20260728) {
		return LegacyOnly
	}
	if slices.ContainsFunc(list, wire.Legacy) {
		return DualEra
	}
	return ModernOnly
}

// Listen is a request for all notifications a server that answered this to
// server/discover can send, nil if it has none (MCP 2026-07-28, "Subscriptions").
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
		list, err := json.Marshal(uris)
		if err == nil { // strings always encode
			filter = append(filter, member{"resourceSubscriptions", list})
		}
	}
	if len(filter) == 0 {
		return nil
	}
	params := object{{"notifications", filter.encode()}}.encode()
	return wire.NewRequest(id, wire.MethodListen, l.Params(wire.MethodListen, params, "", false))
}

// PlainNotification is a notification of a modern server as a legacy client gets
// it, nil for one that it does not know.
func PlainNotification(m wire.Message) []byte {
	if m.Method == wire.NotifyAcknowledged || m.Method == wire.NotifyTasks {
		return nil
	}
	if wire.Lookup(m.Params, "_meta", wire.MetaSubscriptionID) == nil {
		return m.Raw
	}
	params, _ := objectOf(m.Params)
	meta, _ := objectOf(params.get("_meta"))
	params = params.without("_meta")
	if meta = meta.without(wire.MetaSubscriptionID); len(meta) > 0 {
		params = params.with("_meta", meta.encode())
	}
	if len(params) == 0 {
		return wire.NewNotification(m.Method, nil)
	}
	return wire.NewNotification(m.Method, params.encode())
}
