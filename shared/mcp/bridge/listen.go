package bridge

import (
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Limits of one subscriptions/listen.
const (
	maxResources = 100
	maxTasks     = 16
)

// Listener is the response to a subscriptions/listen. It selects the notifications that the client
// gets (MCP 2026-07-28, "Subscriptions").
type Listener struct {
	id     json.RawMessage
	server json.RawMessage // the server's serverInfo
	lists  object          // such as {"toolsListChanged": true}, for the lists whose changes the client gets
	uris   []string        // the resources whose changes the client gets
	tasks  []string        // the taskIds of the tasks whose changes the client gets
	more   bool            // the client also gets the notifications of extensions
}

// NewListener reads a subscriptions/listen. handshake is the server's result of initialize. A
// listen has at most 100 resources. Errors are *[wire.Error] with [wire.CodeInvalidParams].
func NewListener(r Request, handshake json.RawMessage) (*Listener, error) {
	wanted := wire.Lookup(r.Params, "notifications")
	if !isObject(wanted) {
		return nil, invalid("params.notifications must be an object that says what to listen to")
	}
	l := &Listener{id: r.ID, server: ServerInfo(handshake), more: r.Extended()}
	can := func(path ...string) bool {
		return string(wire.Lookup(handshake, append([]string{"capabilities"}, path...)...)) == "true"
	}
	for key, kind := range map[string]string{
		"toolsListChanged": "tools", "promptsListChanged": "prompts", "resourcesListChanged": "resources",
	} {
		value := wire.Lookup(wanted, key)
		if value != nil && string(value) != "true" && string(value) != "false" {
			return nil, invalid("params.notifications.%s must be true or false", key)
		}
		if string(value) == "true" && can(kind, "listChanged") {
			l.lists = append(l.lists, member{key, json.RawMessage("true")})
		}
	}
	slices.SortFunc(l.lists, func(a, b member) int { return slices.Compare([]byte(a.key), []byte(b.key)) })
	var uris []string
	if value := wire.Lookup(wanted, "resourceSubscriptions"); value != nil && json.Unmarshal(value, &uris) != nil {
		return nil, invalid("params.notifications.resourceSubscriptions must be an array of URIs")
	}
	slices.Sort(uris)
	uris = slices.Compact(uris)
	if len(uris) > maxResources {
		return nil, invalid("%d resources in one subscription; listen to at most %d", len(uris), maxResources)
	}
	if can("resources", "subscribe") {
		l.uris = uris
	}
	return l, nil
}

// ReadTasks reads the taskIds of the tasks whose changes a client wants, at most 16. Errors
// are [NeedsTasks] for a client that has not declared tasks, and *[wire.Error] with
// [wire.CodeInvalidParams].
func (l *Listener) ReadTasks(r Request) error {
	var names []string
	switch value := wire.Lookup(r.Params, "notifications", "taskIds"); {
	case value == nil:
		return nil
	case json.Unmarshal(value, &names) != nil:
		return invalid("params.notifications.taskIds must be an array of task ids")
	case !r.KnowsTasks():
		return NeedsTasks()
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > maxTasks {
		return invalid("%d tasks in one subscription; listen to at most %d", len(names), maxTasks)
	}
	l.tasks = names
	return nil
}

// Tasks returns the taskIds that ReadTasks has read.
func (l *Listener) Tasks() []string { return slices.Clone(l.tasks) }

// HonourTasks sets which of the tasks in [Listener.Tasks] exist. The client gets the changes of
// the named tasks.
func (l *Listener) HonourTasks(names []string) { l.tasks = slices.Clone(names) }

// OnlyTasks reports whether the client gets the changes of tasks and no other
// notifications.
func (l *Listener) OnlyTasks() bool { return len(l.lists) == 0 && len(l.uris) == 0 && len(l.tasks) > 0 }

// Resources returns the URIs to which the server must be subscribed.
func (l *Listener) Resources() []string { return slices.Clone(l.uris) }

// Honour sets the resources that the server has agreed to report.
func (l *Listener) Honour(uris []string) { l.uris = slices.Clone(uris) }

// Acknowledged returns the first message to the client. It says which of the notifications that the
// client asked for will come.
func (l *Listener) Acknowledged() []byte {
	filter := slices.Clone(l.lists)
	if len(l.uris) > 0 {
		filter = append(filter, member{"resourceSubscriptions", texts(l.uris)})
	}
	if len(l.tasks) > 0 {
		filter = append(filter, member{"taskIds", texts(l.tasks)})
	}
	return wire.NewNotification(wire.NotifyAcknowledged,
		object{{"_meta", l.stamp()}, {"notifications", filter.encode()}}.encode())
}

func (l *Listener) stamp() json.RawMessage { return object{{wire.MetaSubscriptionID, l.id}}.encode() }

// Notification returns a server's message for the client, or nil if the client did not ask
// for it.
func (l *Listener) Notification(raw []byte) []byte {
	m, err := wire.Parse(raw)
	if err != nil || m.Kind != wire.Notification || !l.wants(m) {
		return nil
	}
	params, _ := objectOf(m.Params)
	meta, _ := objectOf(params.get("_meta"))
	return wire.NewNotification(m.Method, params.with("_meta", meta.with(wire.MetaSubscriptionID, l.id).encode()).encode())
}

func (l *Listener) wants(m wire.Message) bool {
	switch m.Method {
	case wire.NotifyToolsChanged:
		return l.lists.get("toolsListChanged") != nil
	case wire.NotifyPromptsChanged:
		return l.lists.get("promptsListChanged") != nil
	case wire.NotifyResourcesChanged:
		return l.lists.get("resourcesListChanged") != nil
	case wire.NotifyResourceUpdated:
		uri, _ := wire.String(wire.Lookup(m.Params, "uri"))
		return slices.Contains(l.uris, uri)
	default:
		return l.more && wire.OfExtension(m.Method)
	}
}

// End returns the response to the subscriptions/listen, which ends the stream gracefully.
func (l *Listener) End() []byte {
	result := object{{"resultType", text(wire.ResultComplete)}, {"_meta", l.stamp()}}.withMeta(wire.MetaServerInfo, l.server)
	return wire.ResultResponse(l.id, result.encode())
}
