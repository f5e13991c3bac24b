package dynamostore

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

func TestStoreKeepsTheContract(t *testing.T) {
	storagetest.Store(t, storagetest.Harness{
		Open: func(t *testing.T) storage.Store { return open(t, Options{}) },
		Reopen: func(_ *testing.T, s storage.Store) storage.Store {
			one := s.(*Store)
			return New(one.client, one.table, one.options)
		},
		Bounded: func(t *testing.T) storage.Store { return open(t, Options{Events: 8}) },
		Polls:   true,
	})
}
