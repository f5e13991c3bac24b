package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// A caller may see only some tools of a server ([Caller.Tools]). The [storage.Address] of a request for
// a list says which (Shown). A Publisher leaves out the others before it writes the answer to the log.
// The handshake record keeps the whole list; Manager filters it for each caller.
//
// If a server has a [Server.Pin], clients see its tools as they were when they were accepted,
// whatever the server lists now. The first list of a server is accepted automatically. An operator
// accepts later changes. A call of a tool that was not accepted is refused.

// shownTo returns the [storage.Address.Shown] of a delivery. lists are the ids of the delivery's
// requests for lists of tools. shownTo returns nil if the client sees all tools as the server
// lists them.
func shownTo(c Caller, lists ...json.RawMessage) *storage.Shown {
	if c.Tools.IsZero() && c.Server.Pin == nil || len(lists) == 0 {
		return nil
	}
	return &storage.Shown{Tools: c.Tools, Lists: lists, Pin: c.Server.Pin}
}

func greetingOf(c Caller) *storage.Shown {
	if c.Server.Pin == nil {
		return nil
	}
	return &storage.Shown{Pin: c.Server.Pin, Greets: true}
}

// offered returns a server's answer to initialize as its clients get it. If pin is not nil, the
// answer declares listChanged for tools: Dormouse itself announces when a tool is accepted.
func offered(pin *storage.Pin, greeting json.RawMessage) json.RawMessage {
	var tools map[string]json.RawMessage
	if pin == nil || json.Unmarshal(wire.Lookup(greeting, "capabilities", "tools"), &tools) != nil || tools == nil {
		return greeting
	}
	tools["listChanged"] = json.RawMessage("true")
	raw, err := json.Marshal(tools)
	if err != nil {
		return greeting // cannot happen: tools was decoded from JSON
	}
	greeting, _ = wire.Replace(greeting, raw, "capabilities", "tools")
	return greeting
}

func toolLists(msgs []wire.Message) (ids []json.RawMessage) {
	for _, m := range msgs {
		if m.Kind == wire.Request && m.Method == wire.MethodToolsList {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// shown returns b with only those tools that the client may see (a.Shown). Errors: Unavailable.
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
		case errors.Is(err, storage.Invalid): // the lock: a box would send the batch again and again
			events[i] = wire.ErrorResponse(id, &wire.Error{Code: wire.CodeInternal, Message: err.Error()})
		case err != nil:
			return b, err
		default:
			events[i], _ = wire.Replace(raw, visible(a.Shown.Tools, list), "result")
		}
	}
	b.Events = events
	return b, nil
}

// Held keeps the tools of servers as they were accepted; see [Server.Pin].
type Held = held.Keeper

func (o Publisher) keeper() *Held {
	if o.Held == nil {
		return held.NewKeeper(o.Store, nil, slog.New(slog.DiscardHandler), nil)
	}
	return o.Held
}

// accepted returns a list of tools in which each tool is as it was when it was accepted. If pin is
// nil, it returns list unchanged.
func accepted(ctx context.Context, k *Held, pin *storage.Pin, list json.RawMessage) (json.RawMessage, error) {
	if pin == nil {
		return list, nil
	}
	return k.Show(ctx, *pin, list)
}

// visible returns a list of tools of the caller's server as the caller may see it: accepted, and
// filtered by [Caller.Tools].
func (c Caller) visible(ctx context.Context, k *Held, list json.RawMessage) (json.RawMessage, error) {
	list, err := accepted(ctx, k, c.Server.Pin, list)
	return visible(c.Tools, list), err
}

// unaccepted refuses all requests in msgs if one of them calls a tool that was not accepted. It
// returns nil if none of them does.
func (u *use) unaccepted(ctx context.Context, msgs ...wire.Message) (*Call, error) {
	pin := u.caller.Server.Pin
	if pin == nil {
		return nil, nil
	}
	err := u.manager.parts.Held.Permit(ctx, *pin, tools(msgs))
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
	return u.manager.readyCall(answers...), nil
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
			tool = wire.WithDescription(tool, text)
		}
		left = append(left, tool)
	}
	if !changed {
		return list
	}
	list, _ = wire.Replace(list, wire.Array(left), "tools")
	return list
}
