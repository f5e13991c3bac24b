package remote

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// A server with MCP authorization refuses even initialize to a caller without a token. This
// file answers in place of the server, so that the client calls a tool, whose answer tells
// the user where to connect.

// ConnectTool is the only tool of a server that refuses a caller who has yet to connect. The
// answer to a call of it names the page where the caller connects.
const ConnectTool = "connect_account"

// unconnected answers in place of a server that has refused a caller who lacks a token at a third
// party. It returns nil if err is no such refusal, or if only the server can answer.
func (x *exchange) unconnected(err error) json.RawMessage {
	var refused *refusal
	if !x.lacks || !errors.As(err, &refused) || refused.status != http.StatusUnauthorized {
		return nil
	}
	switch x.r.Method {
	case wire.MethodDiscover:
		greeting, _ := json.Marshal(map[string]any{ // texts always encode
			"protocolVersion": wire.V20251125, "serverInfo": map[string]string{"name": x.s.Name, "version": "0"},
			"capabilities": map[string]any{"tools": map[string]any{}, "prompts": map[string]any{}, "resources": map[string]any{}, "logging": map[string]any{}, "completions": map[string]any{}},
			"instructions": "The user has yet to connect their account at " + x.s.Name + ": call the tool " + ConnectTool + ", and list the tools again afterwards.",
		})
		return bridge.Discover(greeting, false)
	case wire.MethodToolsList:
		list, _ := json.Marshal(map[string]any{"ttlMs": 0, "cacheScope": "private", "tools": []any{map[string]any{
			"name": ConnectTool, "inputSchema": map[string]any{"type": "object"},
			"description": "The user has yet to connect their account at " + x.s.Name + ". This tool returns the page where they do. Show its address to them; the tools of the server are listed afterwards.",
		}}})
		return list
	}
	if l, ok := wire.ListOf(x.r.Method); ok {
		return json.RawMessage(`{"` + l.Entries + `":[],"ttlMs":0,"cacheScope":"private"}`)
	}
	return nil
}
