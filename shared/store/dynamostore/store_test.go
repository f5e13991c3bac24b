package dynamostore

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/session"
	"github.com/dormouse-mcp/dormouse/shared/store/sessiontest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	sessiontest.Store(t, sessiontest.Harness{
		Open: func(t *testing.T) session.Store { return open(t, Options{}) },
		Reopen: func(_ *testing.T, s session.Store) session.Store {
			one := s.(*Store)
			return New(one.client, one.table, one.options)
		},
		Bounded: func(t *testing.T) session.Store { return open(t, Options{Events: 8}) },
		Polls:   true,
	})
}
