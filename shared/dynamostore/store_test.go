package dynamostore

import (
	"context"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/sessiontest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	sessiontest.Store(t, sessiontest.Harness{
		Open: func(t *testing.T) session.Store { return brief{open(t, Options{})} },
		Reopen: func(_ *testing.T, s session.Store) session.Store {
			one := s.(brief).Store
			return brief{New(one.client, one.table, one.options)}
		},
	})
}

// brief is a Store whose waits end after two seconds, as they may. The suite wants
// to see a wait end when an item is put; a Store that polls events never sees
// items, and the contract does not ask it to.
type brief struct{ *Store }

func (b brief) Wait(ctx context.Context, id session.ID, stream session.StreamID, after session.Index, until time.Time) (session.Page, error) {
	if end := time.Now().Add(2 * time.Second); end.Before(until) {
		until = end
	}
	return b.Store.Wait(ctx, id, stream, after, until)
}
