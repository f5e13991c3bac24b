package storage_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// listing is a store of n sessions, of which only List works; its call number fails does not.
type listing struct {
	storage.Sessions
	n, fails, reads int
}

func (l *listing) List(_ context.Context, _ string, after storage.ID, limit int) (list []storage.Session, err error) {
	if l.reads++; l.reads == l.fails {
		return nil, storage.Unavailable
	}
	at, _ := strconv.Atoi(string(after))
	for ; at < l.n && len(list) < limit; at++ {
		list = append(list, storage.Session{ID: storage.ID(strconv.Itoa(at + 1))})
	}
	return list, nil
}

// The read number fails, if any, fails. The values are the sessions seen and the reads.
func TestAllSessionsReadsEachPageOnce(t *testing.T) {
	for fails, want := range [][2]int{{100_000, 8}, {0, 1}, {1001, 2}, {3003, 3}} {
		l, seen := &listing{n: 100_000, fails: fails}, 0
		for _, err := range storage.AllSessions(t.Context(), l, "", "") {
			if commontest.EqualIn(t, "error", l.reads == fails, err != nil); err == nil {
				seen++
			}
		}
		commontest.Equal(t, want, [2]int{seen, l.reads})
	}
}
