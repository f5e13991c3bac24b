package bridge

import (
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
