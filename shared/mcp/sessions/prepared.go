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

// provisional returns an answer to initialize for a server that is being prepared
// ([Server.Preparing]). The answer declares listChanged for each list, because [Manager.Prepared]
// announces the lists later.
func provisional(server, version string) json.RawMessage {
	const can = `"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true}`
	return fmt.Appendf(nil, `{"protocolVersion":"%s","capabilities":{%s},"serverInfo":{"name":%s,"version":""}}`, version, can, wire.AppendString(nil, server))
}

// notToKeep adds "ttlMs": 0 to an object, which forbids modern clients to cache the object.
func notToKeep(object json.RawMessage) json.RawMessage {
	return append(object[:len(object)-1:len(object)-1], `,"ttlMs":0}`...)
}

// nothingYet returns the empty result of a list method.
func nothingYet(s storage.Session, method string) json.RawMessage {
	of, _ := wire.ListOf(method)
	list := json.RawMessage(`{"` + of.Entries + `":[]}`)
	if s.Transport == storage.Modern {
		return notToKeep(list)
	}
	return list
}

// Prepared sends list_changed to the clients of a server whose first installation has ended,
// successfully or not: to modern clients, and to clients whose session was created at the given time or
// later.
//
// Errors: Unavailable.
func (h *Manager) Prepared(ctx context.Context, server string, since time.Time) error {
	var errs []error
	for s, err := range storage.AllSessions(ctx, h.store, "", "") {
		if err == nil && s.Server == server && (!s.Created.Before(since) || s.Transport == storage.Modern) {
			err = h.out.tell(ctx, s.ID, h.limits.EventAge,
				wire.NewNotification(wire.NotifyToolsChanged, nil), wire.NewNotification(wire.NotifyPromptsChanged, nil), wire.NewNotification(wire.NotifyResourcesChanged, nil))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
