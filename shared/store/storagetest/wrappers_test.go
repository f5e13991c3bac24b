package storagetest

import (
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func TestWrappersKeepTheContract(t *testing.T) {
	Store(t, Harness{Open: func(*testing.T) storage.Store {
		return NewCounting(NewFaulty(NewMemory(), 1, Faults{}))
	}})
}
