package group

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Info returns the serverInfo that every group has.
func Info() json.RawMessage { return json.RawMessage(`{"name":"dormouse","version":"1"}`) }

// Greeting returns the result of initialize of a group, without a protocol version. It joins the
// capabilities and the instructions in the members' answers to initialize. A member whose Result is
// nil counts as having all capabilities. plain is that of [Names.Merge].
func Greeting(names *Names, plain bool, members ...List) json.RawMessage {
	begin := "begin"
	if plain {
		begin = "may begin"
	}
	all := map[string]any{}
	var instructions []string
	for _, m := range members {
		if m.Result == nil {
			m.Result = Unknown()
		}
		var has map[string]any
		if json.Unmarshal(wire.Lookup(m.Result, "capabilities"), &has) == nil {
			delete(has, "experimental")
			if extensions, ok := has["extensions"].(map[string]any); ok {
				delete(extensions, tasksExtension) // Dormouse itself offers tasks at every address
				if len(extensions) == 0 {
					delete(has, "extensions")
				}
			}
			join(all, has)
		}
		if text, ok := wire.String(wire.Lookup(m.Result, "instructions")); ok && text != "" {
			instructions = append(instructions, "# "+m.Member+" (names "+begin+" with "+wordOf(m.Member)+separator+")\n\n"+text)
		}
	}
	for _, kind := range []string{"tools", "prompts", "resources"} {
		if has, ok := all[kind].(map[string]any); ok {
			has["listChanged"] = true // the lists of a group change when members come or go
		}
	}
	out := struct {
		Capabilities map[string]any  `json:"capabilities"`
		Info         json.RawMessage `json:"serverInfo"`
		Instructions string          `json:"instructions,omitempty"`
	}{all, Info(), strings.Join(instructions, "\n\n")}
	raw, err := json.Marshal(out)
	if err != nil {
		panic("group: " + err.Error()) // values that were decoded from JSON always marshal
	}
	return raw
}

// join adds the keys of source to target. For a key of both it joins two objects in the same way.
// Otherwise an object or true in source replaces the value in target.
func join(target, source map[string]any) {
	for key, value := range source {
		has, ok := target[key].(map[string]any)
		if object, is := value.(map[string]any); is {
			if !ok {
				has = map[string]any{}
				target[key] = has
			}
			join(has, object)
		} else if target[key] == nil || value == true {
			target[key] = value
		}
	}
}

// Joined returns one list, without nextCursor, that has the entries of all pages of a list method. A
// single page without nextCursor stays as it is.
func Joined(method string, pages ...json.RawMessage) json.RawMessage {
	if len(pages) == 1 && wire.Lookup(pages[0], "nextCursor") == nil {
		return pages[0]
	}
	name, _ := kind(method)
	var all []json.RawMessage
	for _, page := range pages {
		all = slices.AppendSeq(all, wire.Elements(wire.Lookup(page, name)))
	}
	return slices.Concat([]byte(`{"`+name+`":`), wire.Array(all), []byte{'}'})
}

// Unknown returns an answer to initialize that declares all capabilities and notifications, for a member
// whose own answer is not known yet.
func Unknown() json.RawMessage {
	return json.RawMessage(`{"capabilities":{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true},"logging":{},"completions":{}}}`)
}

// Subscription returns the params of a subscriptions/listen for one member. params are those that the
// client sent to the group. greeting is the member's answer to initialize, or [Unknown].
// wanted is false if the member can send none of the notifications that the client wants.
func Subscription(member string, params, greeting json.RawMessage) (own json.RawMessage, wanted bool) {
	filter := map[string]any{}
	for key, kind := range map[string]string{"toolsListChanged": "tools", "promptsListChanged": "prompts", "resourcesListChanged": "resources"} {
		can := string(wire.Lookup(greeting, "capabilities", kind, "listChanged")) == "true"
		if string(wire.Lookup(params, "notifications", key)) == "true" && can {
			filter[key] = true
		}
	}
	var uris, tasks []string
	for raw := range wire.Elements(wire.Lookup(params, "notifications", "resourceSubscriptions")) {
		uri, _ := wire.String(raw)
		if of, own, ok := UnwrapURI(uri); ok && of == member {
			uris = append(uris, own)
		}
	}
	for raw := range wire.Elements(wire.Lookup(params, "notifications", "taskIds")) {
		if of, own, ok := UnwrapID(raw); ok && of == member {
			id, _ := wire.String(own)
			tasks = append(tasks, id)
		}
	}
	if uris != nil {
		filter["resourceSubscriptions"] = uris
	}
	if tasks != nil {
		filter["taskIds"] = tasks
	}
	raw, err := json.Marshal(filter)
	if err != nil {
		return nil, false // cannot happen: booleans and strings always marshal
	}
	own, _ = wire.Replace(params, raw, "notifications")
	return own, len(filter) > 0
}

// Acks joins the notifications/subscriptions/acknowledged of several members: it is the union of
// their params.notifications.
type Acks map[string]any

// Add adds a member's acknowledgement. The caller has translated it with [View.Message].
func (a Acks) Add(raw []byte) {
	var more map[string]any
	if json.Unmarshal(wire.Lookup(raw, "params", "notifications"), &more) != nil {
		return
	}
	for key, value := range more {
		if list, ok := value.([]any); ok {
			all, _ := a[key].([]any)
			value = append(all, list...)
		}
		a[key] = value
	}
}

// Message returns the acknowledgement for the client whose request is id.
func (a Acks) Message(id json.RawMessage) []byte {
	filter, err := json.Marshal(map[string]any(a))
	if err != nil {
		panic("group: " + err.Error()) // values that were decoded from JSON always marshal
	}
	meta := slices.Concat([]byte(`{"_meta":{"`+wire.MetaSubscriptionID+`":`), id, []byte(`},"notifications":`), filter, []byte{'}'})
	return wire.NewNotification(wire.NotifyAcknowledged, meta)
}
