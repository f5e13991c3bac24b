package wire

import (
	"encoding/json"
	"fmt"
)

// MaxPages is how many pages of a list are read. A longer list counts as one that never ends.
const MaxPages = 100

// Pages checks the cursors of one list that is read page by page. The zero value is ready to use.
type Pages struct{ seen map[string]bool }

// EndlessList is the error for a list with a cursor that it had before, or with more than MaxPages
// pages. The pages that were read are valid.
type EndlessList struct{ Pages int }

// Error says after how many pages the list was given up.
func (e *EndlessList) Error() string {
	return fmt.Sprintf("the list repeats, and was given up after %d pages: a server must leave out nextCursor on the last page", e.Pages)
}

// Next takes the result of a request for a list, and returns the cursor of the page after it,
// nil if there is none. Errors: *[EndlessList].
func (p *Pages) Next(page json.RawMessage) (cursor json.RawMessage, err error) {
	cursor = Lookup(page, "nextCursor")
	at, ok := String(cursor)
	if !ok {
		return nil, nil
	}
	return cursor, p.Follow(at)
}

// Follow takes the cursor of the next page. Errors: *[EndlessList].
func (p *Pages) Follow(cursor string) error {
	if p.seen == nil {
		p.seen = map[string]bool{}
	}
	if p.seen[cursor] || len(p.seen) == MaxPages-1 {
		return &EndlessList{len(p.seen) + 1}
	}
	p.seen[cursor] = true
	return nil
}
