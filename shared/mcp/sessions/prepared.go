package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// provisional returns the answer to initialize of a server that has not said one yet. It
// promises to announce each list, because all lists come later.
func provisional(server, version string) json.RawMessage {
	const can = `"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true}`
	return fmt.Appendf(nil, `{"protocolVersion":"%s","capabilities":{%s},"serverInfo":{"name":%s,"version":""}}`, version, can, wire.AppendString(nil, server))
}

// notToKeep adds to an object that a modern client must not keep it.
func notToKeep(object json.RawMessage) json.RawMessage {
	return append(object[:len(object)-1:len(object)-1], `,"ttlMs":0}`...)
}

// nothingYet returns an empty list, as a method that isList accepts asks for it.
func nothingYet(s storage.Session, method string) json.RawMessage {
	of, _ := wire.ListOf(method)
	list := json.RawMessage(`{"` + of.Entries + `":[]}`)
	if s.Transport == storage.Modern {
		return notToKeep(list)
	}
	return list
}

// mostTold is how many sessions Prepared reads at once.
const mostTold = 1000

// Prepared tells the clients of a server that was prepared, or could not be, to ask for its
// lists: those of sessions that began at or after since, and those without a session. A client
// that does not listen asks when it likes.
//
// Errors: Unavailable.
func (h *Manager) Prepared(ctx context.Context, server string, since time.Time) error {
	var errs []error
	for after := storage.ID(""); ; {
		page, err := h.store.List(ctx, "", after, mostTold)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for _, s := range page {
			if after = s.ID; s.Server == server && (!s.Created.Before(since) || s.Transport == storage.Modern) {
				errs = append(errs, h.out().tell(ctx, s.ID, h.limits.EventAge,
					wire.NewNotification(wire.NotifyToolsChanged, nil), wire.NewNotification(wire.NotifyPromptsChanged, nil), wire.NewNotification(wire.NotifyResourcesChanged, nil)))
			}
		}
		if len(page) < mostTold {
			return errors.Join(errs...)
		}
	}
}
