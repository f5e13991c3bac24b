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

func TestAllSessionsReadsEachPageOnce(t *testing.T) {
	for _, tt := range []struct{ n, stop, fails, seen, reads int }{
		{n: 0, reads: 1},
		{n: 2500, seen: 2500, reads: 3},
		{n: 2500, stop: 1001, seen: 1001, reads: 1},
		{n: 2500, fails: 2, seen: 1001, reads: 2},
	} {
		l, seen := &listing{n: tt.n, fails: tt.fails}, 0
		for _, err := range storage.AllSessions(t.Context(), l, "", "") {
			if commontest.EqualIn(t, "error", l.reads == tt.fails, err != nil); err == nil {
				seen++
			}
			if seen == tt.stop && seen > 0 {
				break
			}
		}
		commontest.Equal(t, [2]int{tt.seen, tt.reads}, [2]int{seen, l.reads})
	}
}
