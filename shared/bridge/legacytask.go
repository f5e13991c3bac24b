package bridge

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Tasks of 2025-11-25, which the extension of 2026-07-28 has replaced, are not told to
// clients. What follows is for who calls a server's tools as such tasks in their place.

// WithoutLegacyTasks is a result of initialize without the capability for tasks. calls
// says that it has those of tools/call.
func WithoutLegacyTasks(result json.RawMessage) (told json.RawMessage, calls bool) {
	capabilities, ok := objectOf(wire.Lookup(result, "capabilities"))
	if !ok || capabilities.get("tasks") == nil {
		return result, false
	}
	calls = wire.Lookup(result, "capabilities", "tasks", "requests", "tools", "call") != nil
	told, _ = wire.Replace(result, capabilities.without("tasks").encode(), "capabilities")
	return told, calls
}

// LegacyNeed are the tools of a result of tools/list that want to be called as a task
// only.
func LegacyNeed(list json.RawMessage) (names []string) {
	for _, m := range taskSupport(list) {
		if support, _ := wire.String(m.value); TaskSupport(support) == TaskRequired {
			names = append(names, m.key)
		}
	}
	return names
}

// WithoutLegacyNeed is a result of tools/list in which no tool wants to be called as a
// task only. Clients refuse to call those themselves.
func WithoutLegacyNeed(list json.RawMessage) json.RawMessage {
	var tools []json.RawMessage
	if !bytes.Contains(list, []byte(`"`+TaskRequired+`"`)) || json.Unmarshal(wire.Lookup(list, "tools"), &tools) != nil {
		return list
	}
	for i, tool := range tools {
		if support, _ := wire.String(wire.Lookup(tool, "execution", "taskSupport")); TaskSupport(support) == TaskRequired {
			tools[i], _ = wire.Replace(tool, text(string(TaskOptional)), "execution", "taskSupport")
		}
	}
	all := append([]byte{'['}, bytes.Join(raws(tools), []byte{','})...)
	list, _ = wire.Replace(list, append(all, ']'), "tools")
	return list
}

func raws(list []json.RawMessage) [][]byte {
	out := make([][]byte, len(list))
	for i, raw := range list {
		out[i] = raw
	}
	return out
}

// AsLegacyTask is a tools/call that is to be run as a task, which is kept for a time;
// as long as the server likes for 0.
func AsLegacyTask(call []byte, keep time.Duration) []byte {
	params, ok := objectOf(wire.Lookup(call, "params"))
	if !ok {
		return call
	}
	terms := json.RawMessage(`{}`)
	if keep > 0 {
		terms = object{{"ttl", number(keep.Milliseconds())}}.encode()
	}
	call, _ = wire.Replace(call, params.with("task", terms).encode(), "params")
	return call
}
