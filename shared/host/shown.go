package host

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// A caller may see some tools of a server only ([Caller].Tools). The address of its
// requests for lists says which ([session.Address].Shown), and an Outlet leaves the others
// out before it writes or posts an answer. So a client gets the same list from the log,
// over its connection, and again after its connection broke. The handshake record keeps
// the whole list, from which Host leaves out tools for each caller anew.

// shownTo returns what the address of a delivery says about the lists that its messages
// ask for, or nil.
func shownTo(c Caller, lists ...json.RawMessage) *session.Shown {
	if c.Tools.IsZero() || len(lists) == 0 {
		return nil
	}
	return &session.Shown{Tools: c.Tools, Lists: lists}
}

// toolLists returns the ids of the requests for lists of tools.
func toolLists(msgs []wire.Message) (ids []json.RawMessage) {
	for _, m := range msgs {
		if m.Kind == wire.Request && m.Method == wire.MethodToolsList {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// Shown returns a batch as the client of an address may see it. A batch that it has
// returned stays the same.
func Shown(a session.Address, b session.Batch) session.Batch {
	if a.Shown == nil || b.Stream != a.Stream {
		return b
	}
	events := slices.Clone(b.Events)
	for i, raw := range events {
		id := wire.Lookup(raw, "id")
		asked := slices.ContainsFunc(a.Shown.Lists, func(list json.RawMessage) bool { return wire.SameID(id, list) })
		if list := wire.Lookup(raw, "result"); asked && list != nil {
			events[i], _ = wire.Replace(raw, visible(a.Shown.Tools, list), "result")
		}
	}
	b.Events = events
	return b
}

// visible returns a list of tools without those that a filter does not allow. All other
// bytes stay the same.
func visible(tools session.ToolFilter, list json.RawMessage) json.RawMessage {
	if tools.IsZero() {
		return list
	}
	var left [][]byte
	hidden := false
	wire.Elements(wire.Lookup(list, "tools"), func(tool json.RawMessage) bool {
		name, ok := wire.String(wire.Lookup(tool, "name"))
		if ok && !tools.Allows(name) {
			hidden = true
		} else {
			left = append(left, tool)
		}
		return true
	})
	if !hidden {
		return list
	}
	list, _ = wire.Replace(list, slices.Concat([]byte{'['}, bytes.Join(left, []byte{','}), []byte{']'}), "tools")
	return list
}
