package sockets

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// postWithin is how long Post waits for room in the client's buffer.
const postWithin = 2 * time.Second

// Post implements storage.Poster. While the client's buffer is full, it waits for room, for
// postWithin at most.
func (a *API) Post(ctx context.Context, conn string, data []byte) error {
	if len(data) > a.limits.Message {
		return storage.Errorf(storage.TooLarge, "a message of %d bytes is over the limit of %d", len(data), a.limits.Message)
	}
	c, ok := a.find(conn)
	if !ok {
		return errGone
	}
	ctx, cancel := context.WithTimeout(ctx, postWithin)
	defer cancel()
	return c.send(ctx, bytes.Clone(data))
}

// Broadcast sends a message to all connections without waiting. A connection does not get it if
// its client has too much to read.
func (a *API) Broadcast(data []byte) {
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.conns))
	a.mu.Unlock()
	for _, c := range all {
		_ = c.enqueue(data) // an error means that the connection has ended or has no room
	}
}

// Disconnect closes the connection with this id, if there is one.
func (a *API) Disconnect(conn string) {
	if c, ok := a.find(conn); ok {
		c.shut(closedByPost)
	}
}

// Clients implements storage.Clients with an API.
type Clients struct{ *API }

// Close implements storage.Clients.
func (c Clients) Close(_ context.Context, conn string) error {
	c.Disconnect(conn)
	return nil
}
