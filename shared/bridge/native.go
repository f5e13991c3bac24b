package bridge

import (
	"bytes"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// A server that is driven in the modern era whoever its client is.

// Handshake is what a server that answered this to server/discover would answer to a
// modern client's initialize, if there were such a thing: [Discover] makes the same of
// it again. Nothing is taken out for being new.
func Handshake(discover json.RawMessage) json.RawMessage {
	result := Legacy{version: wire.V20251125}.Initialize(discover)
	capabilities := wire.Lookup(discover, "capabilities")
	if !isObject(capabilities) {
		return result
	}
	result, _ = wire.Replace(result, capabilities, "capabilities")
	return result
}

// Asking is a server's call for input as its client gets it: go-sdk 1.8 leaves a
// content of null in it.
func Asking(result json.RawMessage) json.RawMessage {
	o, ok := objectOf(result)
	if !ok || string(o.get("content")) != "null" {
		return result
	}
	return o.without("content").encode()
}

// Declared is what a modern client says of itself in the params of a request, as
// params of initialize.
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

// MetaTaskSupport is where in _meta a tool of a native server has what belongs in
// execution.taskSupport.
const MetaTaskSupport = "io.github.dormouse-mcp/taskSupport"

// Executions is a result of tools/list with what [MetaTaskSupport] says in its place.
func Executions(list json.RawMessage) json.RawMessage {
	if !bytes.Contains(list, []byte(MetaTaskSupport)) {
		return list
	}
	var tools []json.RawMessage
	if json.Unmarshal(wire.Lookup(list, "tools"), &tools) != nil {
		return list
	}
	for i, raw := range tools {
		tool, _ := objectOf(raw)
		meta, ok := objectOf(tool.get("_meta"))
		support := meta.get(MetaTaskSupport)
		if !ok || support == nil {
			continue
		}
		if meta = meta.without(MetaTaskSupport); len(meta) > 0 {
			tool = tool.with("_meta", meta.encode())
		} else {
			tool = tool.without("_meta")
		}
		tools[i] = tool.with("execution", object{{"taskSupport", support}}.encode()).encode()
	}
	raw, err := json.Marshal(tools)
	if err != nil {
		return list // it was JSON before
	}
	list, _ = wire.Replace(list, raw, "tools")
	return list
}
