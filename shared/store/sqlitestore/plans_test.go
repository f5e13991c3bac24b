package sqlitestore

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// TestACallLooksUpWhatItNeeds checks that every statement finds its rows through an index.
// So a message takes as long with 100,000 sessions, or events of its session, as with ten.
func TestACallLooksUpWhatItNeeds(t *testing.T) {
	s := fresh(t)
	events := func(terms string) string {
		return "SEARCH events USING INDEX sqlite_autoindex_events_1 (" + terms + ")"
	}
	batches := "session=? AND stream=? AND first"
	for name, c := range map[string]struct {
		query string
		plan  []string
	}{
		"loadSession": {loadSession, []string{
			"CO-ROUTINE (subquery-1)", "SCAN CONSTANT ROW", "SCAN (subquery-1)", // the one row of SELECT 1
			"SEARCH s USING INDEX sqlite_autoindex_sessions_1 (id=?) LEFT-JOIN", "SEARCH b USING PRIMARY KEY (id=?) LEFT-JOIN",
		}},
		"saveSession": {saveSession, []string{"SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 (id=?)"}},
		"hasSession":  {hasSession, []string{"SEARCH sessions USING INDEX sqlite_autoindex_sessions_1 (id=?)"}},
		"readBatch":   {readBatch, []string{events(batches + "=?")}},
		"readEvents": {readEvents, []string{
			events(batches + ">?"), "SCALAR SUBQUERY 1",
			"SEARCH events USING COVERING INDEX sqlite_autoindex_events_1 (" + batches + "<?)",
		}},
		"readTail":          {readTail, []string{events("session=? AND stream=?")}},
		"newestStream":      {newestStream, []string{events("session=? AND stream>?")}},
		"weighLog":          {weighLog, []string{events("session=?")}},
		"readLog":           {readLog, []string{events("session=?")}},
		"dropBatch":         {dropBatch, []string{events(batches + "=?")}},
		"readBox":           {readBox, []string{"SEARCH boxes USING PRIMARY KEY (id=?)"}},
		"readItem":          {readItem, []string{"SEARCH items USING INDEX sqlite_autoindex_items_1 (box=? AND id=?)"}},
		"claimItem":         {claimItem, []string{"SEARCH items USING INDEX sqlite_autoindex_items_1 (box=? AND id=?)"}},
		"deleteItem":        {deleteItem, []string{"SEARCH items USING INDEX sqlite_autoindex_items_1 (box=? AND id=?)"}},
		"readItems":         {readItems, []string{"SEARCH items USING INDEX sqlite_autoindex_items_1 (box=?)"}},
		"readAnswer":        {readAnswer, []string{"SEARCH answers USING INDEX sqlite_autoindex_answers_1 (session=? AND question=?)"}},
		"readConnection":    {readConnection, []string{"SEARCH connections USING INDEX sqlite_autoindex_connections_1 (id=?)"}},
		"readHandshake":     {readHandshake, []string{"SEARCH handshakes USING INDEX sqlite_autoindex_handshakes_1 (digest=? AND version=?)"}},
		"readKey":           {readRecord("keys"), []string{"SEARCH keys USING PRIMARY KEY (id=?)"}},
		"readGrant":         {readRecord("grants"), []string{"SEARCH grants USING INDEX sqlite_autoindex_grants_1 (id=?)"}},
		"readUpstreamToken": {readRecord("upstream_tokens"), []string{"SEARCH upstream_tokens USING INDEX sqlite_autoindex_upstream_tokens_1 (id=?)"}},
		"appendBatch": {appendBatch, []string{
			"SCALAR SUBQUERY 1", events(batches + ">?"),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			same(t, name, plan(t, s, c.query), c.plan)
		})
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
