package native

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// listWithin is the longest time for a server to list its tools for an operator.
const listWithin = 2 * time.Second

// listFor is how long operators get the same list of a server again. The console asks after each call.
const listFor = 10 * time.Second

// listed is what a server has answered to an operator.
type listed struct {
	at    time.Time
	tools []json.RawMessage
	err   error
}

// Tools returns the tools that a server lists for a tenant's client without capabilities and
// principal, or has listed less than listFor ago. The caller owns the slice.
//
// Errors: NotFound if this program does not have the server; Unavailable if it does not
// answer as MCP says.
func (k *Backend) Tools(ctx context.Context, tenant, server string) ([]json.RawMessage, error) {
	key := [2]string{tenant, server}
	k.mu.Lock()
	last := k.lists[key]
	k.mu.Unlock()
	if time.Since(last.at) >= listFor {
		last.tools, last.err = k.list(ctx, tenant, server)
		last.at = time.Now()
		if ctx.Err() == nil {
			k.mu.Lock()
			maps.DeleteFunc(k.lists, func(_ [2]string, l listed) bool { return time.Since(l.at) >= listFor })
			k.lists[key] = last
			k.mu.Unlock()
		}
	}
	return slices.Clone(last.tools), last.err
}

func (k *Backend) list(ctx context.Context, tenant, server string) ([]json.RawMessage, error) {
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
