package bridge

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// maxParams bounds what is known of a server's header parameters. Of one with more
// nothing is known, and nothing is compared.
const maxParams = 16 << 10

// headerParams are, by tool and by the rest of the header's name in lower case, the
// path to the argument that the header repeats.
type headerParams map[string]map[string][]string

// HeaderParams is what a result of tools/list says of the headers that repeat
// arguments of tools (x-mcp-header; MCP 2026-07-28, basic/transports, "Custom
// Headers"), for [CheckParams]; nil if no tool has any, or if the list goes on in
// another page. A tool whose annotations break the rules has none: clients have to
// leave it out.
func HeaderParams(list json.RawMessage) json.RawMessage {
	var tools []json.RawMessage
	if wire.Lookup(list, "nextCursor") != nil {
		return nil
	}
	if json.Unmarshal(wire.Lookup(list, "tools"), &tools) != nil {
		return nil
	}
	known := headerParams{}
	for _, tool := range tools {
		name, ok := wire.String(wire.Lookup(tool, "name"))
		if !ok {
			continue
		}
		params := map[string][]string{}
		if annotated(wire.Lookup(tool, "inputSchema"), nil, params) && len(params) > 0 {
			known[name] = params
		}
	}
	if len(known) == 0 {
		return nil
	}
	out, err := json.Marshal(known)
	if err != nil || len(out) > maxParams {
		return nil
	}
	return out
}

// ToolNotes is what a result of tools/list says that later calls are held to, for
// [NotedParams] and [NotedTasks]; nil if it says nothing, or if the list goes on in
// another page.
func ToolNotes(list json.RawMessage) json.RawMessage {
	var notes object
	if params := HeaderParams(list); params != nil {
		notes = append(notes, member{"params", params})
	}
	if tasks := taskSupport(list); len(tasks) > 0 && wire.Lookup(list, "nextCursor") == nil {
		notes = append(notes, member{"tasks", tasks.encode()})
	}
	if size := len(notes.encode()); len(notes) == 0 || size > 2*maxParams {
		return nil
	}
	return notes.encode()
}

// taskSupport is, by tool, what a list says of tasks.
func taskSupport(list json.RawMessage) object {
	var tools []json.RawMessage
	if json.Unmarshal(wire.Lookup(list, "tools"), &tools) != nil {
		return nil
	}
	var known object
	for _, tool := range tools {
		name, named := wire.String(wire.Lookup(tool, "name"))
		if support, ok := wire.String(wire.Lookup(tool, "execution", "taskSupport")); named && ok {
			known = append(known, member{name, text(support)})
		}
	}
	return known
}

// NotedParams are the [HeaderParams] in notes.
func NotedParams(notes json.RawMessage) json.RawMessage { return wire.Lookup(notes, "params") }

// TaskSupport is what a tool says of tasks (execution.taskSupport), "" for nothing.
type TaskSupport string

// What tools say of tasks.
const (
	TaskForbidden TaskSupport = "forbidden"
	TaskOptional  TaskSupport = "optional"
	TaskRequired  TaskSupport = "required"
)

// NotedTasks is what notes say of the tool that a request calls.
func NotedTasks(notes json.RawMessage, r Request) TaskSupport {
	name, ok := wire.String(wire.Lookup(r.Params, "name"))
	if !ok {
		return ""
	}
	support, _ := wire.String(wire.Lookup(notes, "tasks", name))
	return TaskSupport(support)
}

// annotated collects the annotations of the properties of a schema; it is false if
// one breaks the rules. What is not reached through properties alone is not looked
// at: there an annotation has no meaning.
func annotated(schema json.RawMessage, path []string, params map[string][]string) bool {
	properties, _ := objectOf(wire.Lookup(schema, "properties"))
	for _, p := range properties {
		at := append(slices.Clone(path), p.key)
		if mark := wire.Lookup(p.value, "x-mcp-header"); mark != nil {
			name, ok := wire.String(mark)
			key := strings.ToLower(name)
			if !ok || !isToken(name) || params[key] != nil || !repeatable(p.value) {
				return false
			}
			params[key] = at
		}
		if !annotated(p.value, at, params) {
			return false
		}
	}
	return true
}

// repeatable says that a header can repeat what has this schema.
func repeatable(schema json.RawMessage) bool {
	kind, _ := wire.String(wire.Lookup(schema, "type"))
	return kind == "string" || kind == "integer" || kind == "boolean"
}

// isToken says that a word may be part of a header's name (RFC 9110, 5.6.2).
func isToken(word string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	odd := strings.ContainsFunc(word, func(c rune) bool {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		return !letter && !strings.ContainsRune(marks, c)
	})
	return word != "" && !odd
}

// CheckParams compares the headers of a call of a tool with its arguments. known is
// of [HeaderParams], nil for nothing, which is fine with any headers. header gives
// the values of a header by its name.
//
// Errors: *[wire.Error] with [wire.CodeHeaderMismatch].
func CheckParams(known json.RawMessage, r Request, header func(name string) []string) error {
	var tools headerParams
	if known == nil || json.Unmarshal(known, &tools) != nil {
		return nil
	}
	tool, _ := wire.String(wire.Lookup(r.Params, "name"))
	for name, path := range tools[tool] {
		value := wire.Lookup(r.Params, append([]string{"arguments"}, path...)...)
		if got := header(wire.HeaderParamPrefix + name); !repeats(got, value) {
			return &wire.Error{
				Code:    wire.CodeHeaderMismatch,
				Message: "header " + wire.HeaderParamPrefix + name + " must repeat the argument " + strings.Join(path, ".") + ", once, and be left out without it",
			}
		}
	}
	return nil
}

// repeats says that a header has the value of an argument.
func repeats(header []string, value json.RawMessage) bool {
	if value == nil || string(value) == "null" {
		return len(header) == 0
	}
	if len(header) != 1 {
		return false
	}
	got, ok := wire.DecodeHeaderValue(header[0])
	if !ok {
		return false
	}
	if s, isText := wire.String(value); isText {
		return got == s
	}
	// 42.0 is 42. What could take long to compute is compared as it is written.
	const longest = 64
	if len(got) > longest || len(value) > longest || strings.ContainsAny(got+string(value), "eExXpP_/") {
		return got == string(value)
	}
	a, okA := new(big.Rat).SetString(got)
	b, okB := new(big.Rat).SetString(string(value))
	if okA && okB {
		return a.Cmp(b) == 0
	}
	return got == string(value)
}
