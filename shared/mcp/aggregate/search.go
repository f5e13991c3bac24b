package aggregate

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/group"
)

// In search mode a client of a group gets two tools in place of hundreds. find_tools searches the lists
// of the members, which come from the handshake records, as for tools/list. Before all checks the group
// replaces a call of call_tool by a call of the tool that it names. Access rules are therefore those
// of the named tool.

const (
	toolFind = "find_tools"
	toolCall = "call_tool"
)

func searchTools() json.RawMessage {
	return json.RawMessage(`{"tools":[` +
		`{"name":"` + toolFind + `","title":"Find tools","description":"Finds tools by words. Call it first: it returns the names, descriptions and input schemas of the tools that fit, best first.",` +
		`"inputSchema":{"type":"object","properties":{"query":{"type":"string","description":"what the tool should do, in a few words"},"limit":{"type":"integer","minimum":1,"maximum":50,"default":10}},"required":["query"]},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false}},` +
		`{"name":"` + toolCall + `","title":"Call a tool","description":"Calls a tool that ` + toolFind + ` has found.",` +
		`"inputSchema":{"type":"object","properties":{"name":{"type":"string","description":"the name of the tool"},"arguments":{"type":"object","description":"its arguments, as its input schema says"}},"required":["name"]}}]}`)
}

func calls(m wire.Message, tool string) bool {
	name, _ := wire.String(wire.Lookup(m.Params, "name"))
	return m.Kind == wire.Request && m.Method == wire.MethodToolsCall && name == tool
}

// searched replaces a call of call_tool by the call of the tool that it names. It returns other messages
// unchanged.
func (g *Group) searched(m wire.Message) (wire.Message, error) {
	if !g.Search || !calls(m, toolCall) {
		return m, nil
	}
	name := wire.Lookup(m.Params, "arguments", "name")
	if text, ok := wire.String(name); !ok || text == toolCall || text == toolFind {
		return m, &wire.Error{Code: wire.CodeInvalidParams, Message: toolCall + " needs the name of a tool that " + toolFind + " has found"}
	}
	arguments := wire.Lookup(m.Params, "arguments", "arguments")
	if arguments == nil {
		arguments = json.RawMessage("{}")
	}
	raw, _ := wire.Replace(m.Raw, arguments, "params", "arguments")
	raw, _ = wire.Replace(raw, name, "params", "name")
	return wire.Parse(raw)
}

const mostFound = 50

func (g *Group) find(ctx context.Context, m wire.Message, s storage.Session) (json.RawMessage, error) {
	query, _ := wire.String(wire.Lookup(m.Params, "arguments", "query"))
	limit := 10
	if raw := wire.Lookup(m.Params, "arguments", "limit"); raw != nil {
		if json.Unmarshal(raw, &limit) != nil || limit < 1 {
			limit = 10
		}
	}
	entries, missing, err := g.entriesFor(ctx, wire.MethodToolsList, s, nil, true)
	if err != nil {
		return nil, err
	}
	found := group.Search(entries, query, min(limit, mostFound))
	structured := group.Result(wire.MethodToolsList, found)
	text := fmt.Sprintf("%d of %d tools fit; call them with %s\n", len(found), len(entries), toolCall)
	for _, e := range found {
		text += "\n" + string(e.Raw)
	}
	for _, server := range slices.Sorted(maps.Keys(missing)) {
		text += "\nThe server " + server + " cannot be asked for its tools: " + missing[server]
	}
	result := append([]byte(`{"content":[{"type":"text","text":`), wire.AppendString(nil, text)...)
	return withUnavailable(append(append(append(result, `}],"structuredContent":`...), structured...), '}'), missing), nil
}
