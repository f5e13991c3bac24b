package bridge

import (
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// maxSubscriptions bounds the resources of one listen stream.
const maxSubscriptions = 100

// Listener is one listen stream: which notifications its client wants, of those
// its server can send (MCP 2026-07-28, "Subscriptions").
type Listener struct {
	id     json.RawMessage
	server json.RawMessage
	lists  object   // the members of the filter that are honoured, all true
	uris   []string // resources the client wants to hear of
}

// NewListener reads subscriptions/listen, before a server that answered this to
// initialize. Errors are *[wire.Error] with [wire.CodeInvalidParams].
func NewListener(r Request, handshake json.RawMessage) (*Listener, error) {
	wanted := wire.Lookup(r.Params, "notifications")
	if !isObject(wanted) {
		return nil, invalid("params.notifications must be an object that says what to listen to")
	}
	l := &Listener{id: r.ID, server: ServerInfo(handshake)}
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
	if len(uris) > maxSubscriptions {
		return nil, invalid("%d resources in one subscription; listen to at most %d", len(uris), maxSubscriptions)
	}
	if can("resources", "subscribe") {
		l.uris = uris
	}
	return l, nil
}

// Resources are the URIs the server has to be told of.
func (l *Listener) Resources() []string { return slices.Clone(l.uris) }

// Honour leaves the resources the server has agreed to tell of.
func (l *Listener) Honour(uris []string) { l.uris = slices.Clone(uris) }

// Acknowledged is the first message of the stream: the subset that is honoured.
func (l *Listener) Acknowledged() []byte {
	filter := slices.Clone(l.lists)
	if len(l.uris) > 0 {
		list := []byte{'['}
		for i, uri := range l.uris {
			if i > 0 {
				list = append(list, ',')
			}
			list = append(list, text(uri)...)
		}
		filter = append(filter, member{"resourceSubscriptions", append(list, ']')})
	}
	return wire.NewNotification(wire.NotifyAcknowledged,
		object{{"_meta", l.stamp()}, {"notifications", filter.encode()}}.encode())
}

func (l *Listener) stamp() json.RawMessage { return object{{wire.MetaSubscriptionID, l.id}}.encode() }

// Notification is a message of the server as the client gets it, nil if it is none
// that was asked for.
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
		return false
	}
}

// End is the response to the request, which ends the stream gracefully.
func (l *Listener) End() []byte {
	result := object{{"resultType", text(wire.ResultComplete)}, {"_meta", l.stamp()}}.withMeta(wire.MetaServerInfo, l.server)
	return wire.ResultResponse(l.id, result.encode())
}
