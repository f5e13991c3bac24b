package bridge

import (
	"bytes"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Dormouse uses the modern era with native servers, whatever the era of the client.

// Handshake returns a result of initialize for a modern server. It is made from the
// server's result of server/discover, and keeps the modern capabilities. So [Discover]
// can turn it back into that result.
func Handshake(discover json.RawMessage) json.RawMessage {
	result := Legacy{version: wire.V20251125}.Initialize(discover)
	capabilities := wire.Lookup(discover, "capabilities")
	if !isObject(capabilities) {
		return result
	}
	result, _ = wire.Replace(result, capabilities, "capabilities")
	return result
}

// Asking returns a server's call for input as its client gets it. It removes the null
// content that go-sdk 1.8 leaves in it.
func Asking(result json.RawMessage) json.RawMessage {
	o, ok := objectOf(result)
	if !ok || string(o.get("content")) != "null" {
		return result
	}
	return o.without("content").encode()
}

// Declared returns what a modern client says about itself in the params of a request, in
// the form of params of initialize.
func Declared(params json.RawMessage) json.RawMessage {
	meta := wire.Lookup(params, "_meta")
	o := object{}
	for _, m := range []struct{ key, from string }{
		{"protocolVersion", wire.MetaProtocolVersion}, {"capabilities", wire.MetaClientCapabilities}, {"clientInfo", wire.MetaClientInfo},
	} {
		if value := wire.Lookup(meta, m.from); value != nil {
			o = append(o, member{m.key, value})
		}
	}
	return o.encode()
}

// MetaTaskSupport is the key in a native tool's _meta for the value that belongs in
// execution.taskSupport.
const MetaTaskSupport = "io.github.dormouse-mcp/taskSupport"

// Executions returns a result of tools/list. It copies the value under [MetaTaskSupport]
// of each tool to execution.taskSupport.
func Executions(list json.RawMessage) json.RawMessage {
	if !bytes.Contains(list, []byte(MetaTaskSupport)) {
		return list
	}
	return wire.ReplaceElements(list, func(raw []byte) []byte {
		tool, _ := objectOf(raw)
		meta, _ := objectOf(tool.get("_meta"))
		support := meta.get(MetaTaskSupport)
		if support == nil {
			return raw
		}
		tool = tool.withoutMeta(func(key string) bool { return key == MetaTaskSupport })
		return tool.with("execution", object{{"taskSupport", support}}.encode()).encode()
	}, "tools")
}
