package group

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// In the group, the id of a member's request is a string that tells the type of the member's own id:
// "member~text" stands for the string "text", "member#12" for the number 12. The names of servers
// have neither character.
const (
	textMark   = "~"
	numberMark = "#"
)

// WrapID returns the id in the group, a JSON string, for the id of a member's request, or for a progress
// token or a taskId of a member.
func WrapID(member string, id json.RawMessage) json.RawMessage {
	if s, ok := wire.String(id); ok {
		return wire.AppendString(nil, member+textMark+s)
	}
	return wire.AppendString(nil, member+numberMark+string(id))
}

// UnwrapID undoes [WrapID]. ok is false for an id of another form.
func UnwrapID(id json.RawMessage) (member string, own json.RawMessage, ok bool) {
	s, ok := wire.String(id)
	at := strings.IndexAny(s, textMark+numberMark)
	if !ok || at <= 0 {
		return "", nil, false
	}
	if s[at:at+1] == textMark {
		return s[:at], wire.AppendString(nil, s[at+1:]), true
	}
	own = json.RawMessage(s[at+1:])
	return s[:at], own, wire.Valid(own)
}

// View translates the messages of one member for a client of the group.
type View struct {
	Member string
	Plain  bool // URIs of resources stay as they are, except those with a keptScheme
}

func (v View) wrap(uri string) string {
	if v.Plain && keptScheme(uri) == "" {
		return uri
	}
	return WrapURI(v.Member, uri)
}

// Message returns a message, or a batch, of the member as the client gets it: with the group's URIs and
// ids. All other bytes stay the same.
func (v View) Message(raw []byte) []byte {
	if len(raw) > 0 && raw[0] == '[' {
		return wire.ReplaceElements(raw, v.Message)
	}
	method, called := wire.String(wire.Lookup(raw, "method"))
	id := wire.Lookup(raw, "id")
	switch {
	case !called:
		if result := wire.Lookup(raw, "result"); result != nil {
			raw, _ = wire.Replace(raw, v.result(result), "result")
		}
		return raw
	case id != nil:
		raw, _ = wire.Replace(raw, WrapID(v.Member, id), "id")
		raw = v.id(raw, "params", "_meta", wire.MetaProgressToken)
	case method == wire.NotifyAcknowledged:
		raw = wire.ReplaceElements(raw, func(uri []byte) []byte { return v.uri(uri) }, "params", "notifications", "resourceSubscriptions")
		raw = wire.ReplaceElements(raw, func(id []byte) []byte { return v.id(id) }, "params", "notifications", "taskIds")
	case method == wire.NotifyResourceUpdated:
		raw = v.uri(raw, "params", "uri")
	case method == wire.NotifyCancelled:
		raw = v.id(raw, "params", "requestId")
	}
	raw = v.id(raw, "params", "taskId")
	return v.id(raw, "params", "_meta", wire.MetaRelatedTask, "taskId")
}

// result translates the result of a request. It goes by the keys in the result, because a response
// on a resumed stream does not tell the method of its request.
func (v View) result(raw json.RawMessage) json.RawMessage {
	out := v.apps(raw, "_meta")
	for _, list := range []string{"contents", "resources"} {
		out = wire.ReplaceElements(out, v.file, list)
	}
	if skill := wire.Lookup(out, "skill"); skill != nil {
		out, _ = wire.Replace(out, wire.ReplaceElements(v.file(skill), v.file, "resources"), "skill")
	}
	out = wire.ReplaceElements(out, v.content, "content")
	out = wire.ReplaceElements(out, func(m []byte) []byte {
		if content := wire.Lookup(m, "content"); len(content) > 0 && content[0] == '{' {
			m, _ = wire.Replace(m, v.content(content), "content")
			return m
		}
		return wire.ReplaceElements(m, v.content, "content")
	}, "messages")
	out = v.id(out, "taskId")
	if inner := wire.Lookup(out, "result"); len(inner) > 0 && inner[0] == '{' { // a task's result, inside of the result of tasks/get (2026-07-28)
		out, _ = wire.Replace(out, v.result(inner), "result")
	}
	return v.id(out, "_meta", wire.MetaRelatedTask, "taskId")
}

// content translates a block of content of a tool or a prompt: the URIs of resources and resource links.
func (v View) content(block []byte) []byte {
	block = v.apps(block, "_meta")
	switch kind, _ := wire.String(wire.Lookup(block, "type")); kind {
	case "resource_link":
		return v.uri(block, "uri")
	case "resource":
		return v.apps(v.uri(block, "resource", "uri"), "resource", "_meta")
	}
	return block
}

// file translates an object with a URI: the content of a resource, an entry of a directory, a
// skill, or a file of a skill.
func (v View) file(object []byte) []byte { return v.apps(v.uri(object, "uri"), "_meta") }

// apps translates the URIs of pages of MCP Apps in the value at path, at any depth. Servers have
// these URIs in _meta under several keys.
func (v View) apps(raw []byte, path ...string) []byte {
	value := wire.Lookup(raw, path...)
	if !bytes.Contains(value, []byte("ui:")) {
		return raw
	}
	changed := value
	switch text, _ := wire.String(value); {
	case strings.HasPrefix(text, appScheme):
		changed = wire.AppendString(nil, WrapURI(v.Member, text))
	case value[0] == '[':
		changed = wire.ReplaceElements(value, func(item []byte) []byte { return v.apps(item) })
	case value[0] == '{':
		for key, member := range wire.Members(value) {
			if now := v.apps(member); !bytes.Equal(now, member) {
				changed, _ = wire.Replace(changed, now, key)
			}
		}
	}
	if len(path) == 0 || bytes.Equal(changed, value) {
		return changed
	}
	raw, _ = wire.Replace(raw, changed, path...)
	return raw
}

func (v View) uri(raw []byte, path ...string) []byte {
	uri, ok := wire.String(wire.Lookup(raw, path...))
	if wrapped := v.wrap(uri); ok && wrapped != uri {
		raw, _ = wire.Replace(raw, wire.AppendString(nil, wrapped), path...)
	}
	return raw
}

func (v View) id(raw []byte, path ...string) []byte {
	if id := wire.Lookup(raw, path...); id != nil {
		raw, _ = wire.Replace(raw, WrapID(v.Member, id), path...)
	}
	return raw
}

// Target says which member a client's message is for.
type Target struct {
	Member string // the member, "" if the message names none
	// Place is the path, in the message, of the name, URI or id that names the member; nil if the
	// message has none.
	Place []string
	// Name is the name of a tool or prompt, or the URI, at Place, and Kind the method whose list has
	// it. Name and Kind are "" for an id.
	Name, Kind string
	own        json.RawMessage // the member's own name, URI or id, as JSON
}

// Find returns the Target of a client's message.
func (n *Names) Find(m wire.Message) (t Target) {
	if m.Kind == wire.Response {
		t.Place = []string{"id"}
		t.Member, t.own, _ = UnwrapID(m.ID)
		return t
	}
	at := func(kind string, path ...string) {
		t.Kind, t.Place = kind, append([]string{"params"}, path...)
		t.Name, _ = wire.String(wire.Lookup(m.Raw, t.Place...))
	}
	id := func(path ...string) {
		t.Place = append([]string{"params"}, path...)
		t.Member, t.own, _ = UnwrapID(wire.Lookup(m.Raw, t.Place...))
	}
	switch m.Method {
	case wire.MethodToolsCall:
		at(wire.MethodToolsList, "name")
	case wire.MethodPromptsGet:
		at(wire.MethodPromptsList, "name")
	case wire.MethodResourcesRead, wire.MethodSubscribe, wire.MethodUnsubscribe:
		at(wire.MethodResourcesList, "uri")
	case wire.MethodComplete:
		if wire.Lookup(m.Params, "ref", "uri") != nil {
			at(wire.MethodResourceTemplatesList, "ref", "uri")
		} else {
			at(wire.MethodPromptsList, "ref", "name")
		}
	case wire.MethodTasksGet, wire.MethodTasksCancel, wire.MethodTasksUpdate:
		id("taskId")
	case wire.NotifyProgress:
		id("progressToken")
	default: // a method of an extension
		if uri, ok := wire.String(wire.Lookup(m.Params, "uri")); ok {
			if member, own, ok := UnwrapURI(uri); ok && n.has(member) {
				t.Member, t.Place, t.own = member, []string{"params", "uri"}, wire.AppendString(nil, own)
			}
		}
	}
	if t.Kind == "" {
		return t
	}
	own, ok := "", false
	switch t.Kind {
	case wire.MethodToolsList, wire.MethodPromptsList:
		t.Member, own, ok = n.Split(t.Name)
	default:
		t.Member, own, ok = UnwrapURI(t.Name)
	}
	if ok {
		t.own = wire.AppendString(nil, own)
	}
	return t
}

// To returns t for another member. own is that member's own name or URI.
func (t Target) To(member, own string) Target {
	t.Member, t.own = member, wire.AppendString(nil, own)
	return t
}

// Own returns the member's own name, URI or id. It returns the id 12 as "12".
func (t Target) Own() string {
	if s, ok := wire.String(t.own); ok {
		return s
	}
	return string(t.own)
}

// Message returns a client's message with the member's own name, URI or id at Place.
func (t Target) Message(m wire.Message) (wire.Message, error) {
	if t.Place == nil || t.own == nil {
		return m, nil
	}
	raw, ok := wire.Replace(m.Raw, t.own, t.Place...)
	if !ok {
		return m, nil
	}
	return wire.Parse(raw)
}
