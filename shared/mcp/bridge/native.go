package bridge

import (
	"bytes"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Native servers, which are written in Go and run in this program, always get modern messages,
// whatever the era of the client.

// Handshake returns a result of initialize for a modern server, made from the server's result of
// server/discover. The capabilities have their modern form, so that [Discover] can turn the result
// back.
func Handshake(discover json.RawMessage) json.RawMessage {
	result := Legacy{version: wire.V20251125}.Initialize(discover)
	capabilities := wire.Lookup(discover, "capabilities")
	if !isObject(capabilities) {
		return result
	}
	result, _ = wire.Replace(result, capabilities, "capabilities")
	return result
}

// Asking returns a server's result with inputRequests without the "content": null that go-sdk 1.8
// writes into it.
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

// MetaTaskSupport is the key in the _meta of a native server's tool for the value of
// execution.taskSupport, which go-sdk cannot write.
const MetaTaskSupport = "io.github.dormouse-mcp/taskSupport"

// Executions returns a result of tools/list in which each tool has its value of [MetaTaskSupport] as
// execution.taskSupport.
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
