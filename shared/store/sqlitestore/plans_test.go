package sqlitestore

import (
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// TestACallLooksUpWhatItNeeds checks that every statement finds its rows through an index.
// So a message takes as long with 100,000 sessions, or events of its session, as with ten.
func TestACallLooksUpWhatItNeeds(t *testing.T) {
	s := fresh(t)
	oneRow := []string{"SCAN CONSTANT ROW", "SCAN (subquery-1)"} // of SELECT 1 in loadSession
	for _, query := range []string{
		loadSession, saveSession, hasSession, readBatch, readEvents, readTail, newestStream, weighLog, readLog, dropBatch, appendBatch,
		readBox, readItem, claimItem, deleteItem, readItems, readAnswer, readConnection, readHandshake,
		readRecord("keys"), readRecord("grants"), readRecord("upstream_tokens"),
	} {
		for _, step := range plan(t, s, query) {
			if strings.HasPrefix(step, "SCAN") && !slices.Contains(oneRow, step) {
				t.Errorf("%s\ndoes %s", query, step)
			}
		}
	}
}

// TestWhatHasExpiredIsFoundByAnIndex checks that the purge in some writes takes no
// longer when there are more rows that have not expired.
func TestWhatHasExpiredIsFoundByAnIndex(t *testing.T) {
	s := fresh(t)
	for _, query := range purges() {
		for _, step := range plan(t, s, query) {
			if strings.HasPrefix(step, "SCAN") && query != purgeKeys {
				t.Errorf("%s\ndoes %s", query, step)
			}
		}
	}
}

func plan(t *testing.T, s *Store, query string) (steps []string) {
	t.Helper()
	rows, err := s.writer.db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, make([]any, 13)...)
	commontest.OK(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		commontest.OK(t, rows.Scan(&id, &parent, &unused, &detail))
		steps = append(steps, detail)
	}
	commontest.OK(t, rows.Err())
	return steps
}
