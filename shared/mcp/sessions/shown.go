package sessions

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A caller may see some tools of a server only ([Caller].Tools). The address of its
// requests for lists says which ([storage.Address].Shown), and a Publisher leaves the others
// out before it writes or posts an answer. So a client gets the same list from the log,
// over its connection, and again after its connection broke. The handshake record keeps
// the whole list, from which Manager leaves out tools for each caller anew.

// shownTo returns the entry Shown for the address of a delivery whose messages ask for
// lists. It is nil if the client sees all tools.
func shownTo(c Caller, lists ...json.RawMessage) *storage.Shown {
	if c.Tools.IsZero() || len(lists) == 0 {
		return nil
	}
	return &storage.Shown{Tools: c.Tools, Lists: lists}
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

// Shown returns a batch as the client of an address may see it. Calling Shown again with
// the result changes nothing.
func Shown(a storage.Address, b storage.Batch) storage.Batch {
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

// visible returns a list of tools without those that a filter does not allow, and with
// the filter's descriptions. All other bytes stay the same.
func visible(tools storage.ToolFilter, list json.RawMessage) json.RawMessage {
	if tools.IsZero() {
		return list
	}
	var left [][]byte
	changed := false
	wire.Elements(wire.Lookup(list, "tools"), func(tool json.RawMessage) bool {
		name, ok := wire.String(wire.Lookup(tool, "name"))
		if ok && !tools.Allows(name) {
			changed = true
			return true
		}
		if text, says := tools.Says[name]; ok && says {
			changed = true
			tool = described(tool, text)
		}
		left = append(left, tool)
		return true
	})
	if !changed {
		return list
	}
	list, _ = wire.Replace(list, slices.Concat([]byte{'['}, bytes.Join(left, []byte{','}), []byte{']'}), "tools")
	return list
}

// described returns a tool with another description.
func described(tool json.RawMessage, text string) json.RawMessage {
	value := wire.AppendString(nil, text)
	if has, ok := wire.Replace(tool, value, "description"); ok {
		return has
	}
	// The tool has a name, so there is another member after the first brace.
	return slices.Concat([]byte(`{"description":`), value, []byte{','}, bytes.TrimLeft(tool, " \t\r\n")[1:])
}
