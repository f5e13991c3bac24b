package sessions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A caller may see some tools of a server only ([Caller].Tools). The address of its
// requests for lists says which ([storage.Address].Shown), and a Publisher leaves the others
// out before it writes or posts an answer. So a client gets the same list from the log,
// over its connection, and again after its connection broke. The handshake record keeps
// the whole list, from which Manager leaves out tools for each caller anew.

// A server whose tools are held still ([Server].Pin) shows every client what was accepted of
// them, in all these places. Its first list is accepted when a client first gets it. Calls of
// other tools go to no process.

// shownTo returns the entry Shown for the address of a delivery whose messages ask for
// lists. It is nil if the client sees all tools as the server lists them.
func shownTo(c Caller, lists ...json.RawMessage) *storage.Shown {
	if c.Tools.IsZero() && c.Server.Pin == nil || len(lists) == 0 {
		return nil
	}
	return &storage.Shown{Tools: c.Tools, Lists: lists, Pin: c.Server.Pin}
}

// greetingOf returns the entry Shown for the address of an initialize.
func greetingOf(c Caller) *storage.Shown {
	if c.Server.Pin == nil {
		return nil
	}
	return &storage.Shown{Pin: c.Server.Pin, Greets: true}
}

// offered returns a server's answer to initialize as its clients get it. If its tools are held
// still, Dormouse itself tells clients when one is taken, and so offers that.
func offered(pin *storage.Pin, greeting json.RawMessage) json.RawMessage {
	var tools map[string]json.RawMessage
	if pin == nil || json.Unmarshal(wire.Lookup(greeting, "capabilities", "tools"), &tools) != nil || tools == nil {
		return greeting
	}
	tools["listChanged"] = json.RawMessage("true")
	raw, err := json.Marshal(tools)
	if err != nil {
		return greeting // it was JSON before
	}
	greeting, _ = wire.Replace(greeting, raw, "capabilities", "tools")
	return greeting
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

// shown returns a batch as the client of an address may see it. Errors: Unavailable.
func (o Publisher) shown(ctx context.Context, a storage.Address, b storage.Batch) (storage.Batch, error) {
	if a.Shown == nil || b.Stream != a.Stream {
		return b, nil
	}
	events := slices.Clone(b.Events)
	for i, raw := range events {
		id := wire.Lookup(raw, "id")
		asked := slices.ContainsFunc(a.Shown.Lists, func(list json.RawMessage) bool { return wire.SameID(id, list) })
		list := wire.Lookup(raw, "result")
		if a.Shown.Greets && list != nil {
			events[i], _ = wire.Replace(raw, offered(a.Shown.Pin, list), "result")
			continue
		}
		if !asked || list == nil {
			continue
		}
		list, err := accepted(ctx, o.keeper(), a.Shown.Pin, list)
		switch {
		case errors.Is(err, storage.TooLarge):
			events[i] = wire.ErrorResponse(id, &wire.Error{Code: wire.CodeInternal, Message: "the list of tools is too long to be held still; set \"tools\": {\"pin\": false} in x-dormouse of the server"})
		case err != nil:
			return b, err
		default:
			events[i], _ = wire.Replace(raw, visible(a.Shown.Tools, list), "result")
		}
	}
	b.Events = events
	return b, nil
}

// Held keeps what was accepted of the tools of servers.
type Held = held.Keeper

func (o Publisher) keeper() *Held {
	if o.Held == nil {
		return held.NewKeeper(o.Store, nil, slog.New(slog.DiscardHandler), nil)
	}
	return o.Held
}

// accepted returns a list with what was accepted of the tools. A server without a pin has no
// such list.
func accepted(ctx context.Context, k *Held, pin *storage.Pin, list json.RawMessage) (json.RawMessage, error) {
	if pin == nil {
		return list, nil
	}
	return k.Show(ctx, *pin, list)
}

// visible returns a list of tools of the caller's server as the caller may see it.
func (h *Manager) visible(ctx context.Context, c Caller, list json.RawMessage) (json.RawMessage, error) {
	list, err := accepted(ctx, h.parts.Held, c.Server.Pin, list)
	return visible(c.Tools, list), err
}

// unaccepted answers messages with a call of a tool that is held back. It returns nil if there
// is none.
func (h *Manager) unaccepted(ctx context.Context, c Caller, msgs ...wire.Message) (*Call, error) {
	if c.Server.Pin == nil {
		return nil, nil
	}
	err := h.parts.Held.Permit(ctx, *c.Server.Pin, tools(msgs))
	refused, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return nil, err
	}
	var answers [][]byte
	for _, m := range msgs {
		if m.Kind == wire.Request {
			answers = append(answers, wire.ErrorResponse(m.ID, refused))
		}
	}
	return h.readyCall(answers...), nil
}

// visible returns a list of tools without those that a filter does not allow, and with
// the filter's descriptions. All other bytes stay the same.
func visible(tools storage.ToolFilter, list json.RawMessage) json.RawMessage {
	if tools.IsZero() {
		return list
	}
	var left []json.RawMessage
	changed := false
	for tool := range wire.Elements(wire.Lookup(list, "tools")) {
		name, ok := wire.String(wire.Lookup(tool, "name"))
		if ok && !tools.Allows(name) {
			changed = true
			continue
		}
		if text, says := tools.Says[name]; ok && says {
			changed = true
			tool = described(tool, text)
		}
		left = append(left, tool)
	}
	if !changed {
		return list
	}
	list, _ = wire.Replace(list, wire.Array(left), "tools")
	return list
}

func described(tool json.RawMessage, text string) json.RawMessage {
	value := wire.AppendString(nil, text)
	if has, ok := wire.Replace(tool, value, "description"); ok {
		return has
	}
	// The tool has a name, so there is another member after the first brace.
	return slices.Concat([]byte(`{"description":`), value, []byte{','}, bytes.TrimLeft(tool, " \t\r\n")[1:])
}
