package bridge

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Clients do not see the tasks of 2025-11-25, which the extension of 2026-07-28 has replaced. If a tool
// requires such a task, Dormouse runs the task with the functions of this file, and gives the client the
// result.

// WithoutLegacyTasks returns a result of initialize without the capability for tasks. calls
// reports whether that capability included tools/call.
func WithoutLegacyTasks(result json.RawMessage) (told json.RawMessage, calls bool) {
	capabilities, ok := objectOf(wire.Lookup(result, "capabilities"))
	if !ok || capabilities.get("tasks") == nil {
		return result, false
	}
	calls = wire.Lookup(result, "capabilities", "tasks", "requests", "tools", "call") != nil
	told, _ = wire.Replace(result, capabilities.without("tasks").encode(), "capabilities")
	return told, calls
}

// LegacyNeed returns the names of the tools in a result of tools/list that can be called
// only as a task.
func LegacyNeed(list json.RawMessage) (names []string) {
	for _, m := range taskSupport(list) {
		if support, _ := wire.String(m.value); TaskSupport(support) == TaskRequired {
			names = append(names, m.key)
		}
	}
	return names
}

// WithoutLegacyNeed returns a result of tools/list in which each tool that requires a task
// says that a task is optional.
func WithoutLegacyNeed(list json.RawMessage) json.RawMessage {
	if !bytes.Contains(list, []byte(`"`+TaskRequired+`"`)) {
		return list
	}
	return wire.ReplaceElements(list, func(tool []byte) []byte {
		if support, _ := wire.String(wire.Lookup(tool, "execution", "taskSupport")); TaskSupport(support) == TaskRequired {
			tool, _ = wire.Replace(tool, text(string(TaskOptional)), "execution", "taskSupport")
		}
		return tool
	}, "tools")
}

// AsLegacyTask returns a tools/call that asks the server to run it as a task. keep is how long the
// server should keep the result; 0 leaves that to the server.
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
