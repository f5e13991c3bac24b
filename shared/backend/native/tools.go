package native

import (
	"context"
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// listWithin is the longest time for a server to list its tools for an operator.
const listWithin = 2 * time.Second

// Tools returns the tools that a server lists for a tenant's client without capabilities and
// principal. The caller owns the slice.
//
// Errors: NotFound if this program does not have the server; Unavailable if it does not
// answer as MCP says.
func (k *Backend) Tools(ctx context.Context, tenant, server string) ([]json.RawMessage, error) {
	h, ok := k.Servers(server)
	if !ok || h.Make == nil && h.Remote == nil {
		return nil, storage.Errorf(storage.NotFound, "this program does not have the native server %s", server)
	}
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	nobody := storage.Session{
		ID: storage.NewID(), Server: server, Tenant: tenant, Version: wire.V20251125, Init: json.RawMessage(`{"capabilities":{}}`),
	}
	r := k.newRun(ctx, storage.Address{Session: nobody.ID}, nobody, h)
	r.ctx = ctx
	c := &call{r: r, id: json.RawMessage("1"), m: wire.Message{Kind: wire.Request, ID: json.RawMessage("1"), Method: wire.MethodToolsList}}
	r.calls = []*call{c}
	listed := make(chan outcome, 1)
	go func() { listed <- c.execute() }()
	var answer []byte
	select {
	case o := <-listed:
		answer = o.raw
	case <-ctx.Done():
	}
	r.wait()
	var tools []json.RawMessage
	if list := wire.Lookup(answer, "result", "tools"); list == nil || json.Unmarshal(list, &tools) != nil {
		return nil, storage.Errorf(storage.Unavailable, "the native server %s does not list its tools", server)
	}
	return tools, nil
}
