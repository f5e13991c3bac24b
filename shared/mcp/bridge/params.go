package bridge

import (
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// maxParams limits the size of the header parameters of one server, in bytes. Dormouse
// compares no headers for a server that has more.
const maxParams = 16 << 10

// headerParams maps a tool to its headers, and a header to the path of the argument that it repeats.
// The key of a header is what follows Mcp-Param- in its name, in lower case.
type headerParams map[string]map[string][]string

// HeaderParams returns which headers must repeat arguments of the tools in a result of tools/list
// (x-mcp-header; MCP 2026-07-28, basic/transports, "Custom Headers"), as JSON for [CheckParams]. It
// returns nil if there are none, if the JSON exceeds 16 KiB, or if the list has another page. A tool
// with invalid annotations counts as one without headers, because clients must not call it.
func HeaderParams(list json.RawMessage) json.RawMessage {
	if wire.Lookup(list, "nextCursor") != nil {
		return nil
	}
	known := headerParams{}
	for tool := range wire.Elements(wire.Lookup(list, "tools")) {
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

// ToolNotes returns, for the tools in a result of tools/list, the [HeaderParams] and each tool's
// [TaskSupport], as JSON for [NotedParams] and [NotedTasks]. It leaves out both if the list has another
// page. It returns nil if nothing is left, or the JSON exceeds 32 KiB.
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

// taskSupport maps each tool of a list to its execution.taskSupport.
func taskSupport(list json.RawMessage) (known object) {
	for tool := range wire.Elements(wire.Lookup(list, "tools")) {
		name, named := wire.String(wire.Lookup(tool, "name"))
		if support, ok := wire.String(wire.Lookup(tool, "execution", "taskSupport")); named && ok {
			known = append(known, member{name, text(support)})
		}
	}
	return known
}

// NotedParams returns the [HeaderParams] in the result of ToolNotes.
func NotedParams(notes json.RawMessage) json.RawMessage { return wire.Lookup(notes, "params") }

// TaskSupport is what a tool says about tasks (execution.taskSupport), "" if it says
// nothing.
type TaskSupport string

// The values of execution.taskSupport (MCP 2025-11-25).
const (
	TaskForbidden TaskSupport = "forbidden"
	TaskOptional  TaskSupport = "optional"
	TaskRequired  TaskSupport = "required"
)

// NotedTasks returns the TaskSupport of the tool that a request calls. notes is the result of
// ToolNotes.
func NotedTasks(notes json.RawMessage, r Request) TaskSupport {
	name, ok := wire.String(wire.Lookup(r.Params, "name"))
	if !ok {
		return ""
	}
	support, _ := wire.String(wire.Lookup(notes, "tasks", name))
	return TaskSupport(support)
}

// annotated adds to params the x-mcp-header annotations in a schema, and in the schemas within it. path is
// the path in the arguments of what the schema describes. It returns false if an annotation is invalid.
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

// repeatable reports whether a header can repeat a value of this schema.
func repeatable(schema json.RawMessage) bool {
	kind, _ := wire.String(wire.Lookup(schema, "type"))
	return kind == "string" || kind == "integer" || kind == "boolean"
}

// isToken reports whether a word may be part of a header's name (RFC 9110, 5.6.2).
func isToken(word string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	odd := strings.ContainsFunc(word, func(c rune) bool {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		return !letter && !strings.ContainsRune(marks, c)
	})
	return word != "" && !odd
}

// headersOf returns the path of the argument that each header must repeat. params are the params of
// a tools/call, which name the tool. known is a result of HeaderParams.
func headersOf(known, params json.RawMessage) map[string][]string {
	var tools headerParams
	if known == nil || json.Unmarshal(known, &tools) != nil {
		return nil
	}
	tool, _ := wire.String(wire.Lookup(params, "name"))
	return tools[tool]
}

// CheckParams compares the headers of a tools/call with its arguments. known is a result of
// [HeaderParams]; nil allows any headers. header returns the values of a header by its name.
//
// Errors: *[wire.Error] with [wire.CodeHeaderMismatch].
func CheckParams(known json.RawMessage, r Request, header func(name string) []string) error {
	for name, path := range headersOf(known, r.Params) {
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

// ParamHeaders returns the values of the headers that must repeat arguments of a tools/call, by what
// follows Mcp-Param- in the header's name. params are the params of the call. known is a result of
// [HeaderParams], nil for none.
func ParamHeaders(known, params json.RawMessage) map[string]string {
	values := map[string]string{}
	for name, path := range headersOf(known, params) {
		value := wire.Lookup(params, append([]string{"arguments"}, path...)...)
		if value == nil || string(value) == "null" {
			continue
		}
		if text, ok := wire.String(value); ok {
			values[name] = text
		} else {
			values[name] = string(value)
		}
	}
	return values
}

// repeats reports whether a header, with these values, repeats an argument correctly.
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
	// Numbers are compared by value: 42.0 equals 42. Long numbers, and those with exponents,
	// are compared as text.
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
