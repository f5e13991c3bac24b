package api

import (
	"context"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/config/held"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Accept asks to accept tools that are held back from clients. Tools maps the name of each to the
// hash of the version that the operator has seen.
type Accept struct {
	Tools map[string]string `json:"tools"`
}

// Accepted is the response to [Accept]: the tools that clients get from now on.
type Accepted struct {
	Tools []held.Tool `json:"tools"`
}

const noHeld missing = "nothing is known here of what was accepted; start dormouse run, or use --url"

// pinned returns the server in the path, and its pin, which names its accepted tools in the store.
func (x *exchange) pinned() (serversfile.Server, *storage.Pin, error) {
	s, err := x.server()
	switch pin := s.Pin(); {
	case err != nil:
		return s, nil, err
	case pin == nil:
		return s, nil, storage.Errorf(storage.NotFound, "the tools of server %q are not held: clients see what it lists. Set \"tools\": {\"pin\": true} in its x-dormouse", s.Name)
	default:
		return s, pin, nil
	}
}

// held answers with the tools of a server that clients do not get until an operator accepts them.
func (x *exchange) held() (any, error) {
	_, pin, err := x.pinned()
	if err != nil {
		return nil, err
	}
	return x.h.Held.State(x.r.Context(), *pin)
}

// accept accepts tools that are held back. The caller must be the owner of the machine or stack,
// because all tenants have the same accepted tools.
func (x *exchange) accept() (any, error) {
	s, pin, err := x.pinned()
	if err != nil {
		return nil, err
	}
	if !x.caller.owns() {
		return nil, storage.Errorf(storage.Forbidden, "the accepted tools are those of all tenants; it takes an operator's key for all servers of the tenant %s", ownTenant)
	}
	var order Accept
	if err := x.body(&order); err != nil {
		return nil, err
	}
	taken, err := x.h.Held.Accept(x.r.Context(), *pin, order.Tools)
	if err != nil || x.h.Relist == nil {
		return Accepted{taken}, err
	}
	tenants, err := x.tenants()
	for _, tenant := range tenants {
		if err == nil {
			err = x.h.Relist(x.r.Context(), tenant, s)
		}
	}
	return Accepted{taken}, err
}

// heldOf returns how many tools of a server clients do not get until an operator accepts them.
func (o Options) heldOf(ctx context.Context, s serversfile.Server) (int, error) {
	pin := s.Pin()
	if pin == nil || o.Held == nil {
		return 0, nil
	}
	return o.Held.Count(ctx, *pin)
}

// shown returns tools of a server as clients see them.
func (o Options) shown(ctx context.Context, s serversfile.Server, tools []json.RawMessage) ([]json.RawMessage, error) {
	pin := s.Pin()
	if pin == nil || o.Held == nil || tools == nil {
		return tools, nil
	}
	return o.Held.Look(ctx, *pin, tools)
}
