// Package restored prepares a store that was restored from a backup for use.
package restored

import (
	"context"
	"errors"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Jump is what [Advance] adds to the generation of a box. Each wake of a box adds 1; no box wakes
// so often between a backup and its restore.
const Jump storage.Generation = 1_000_000

// Advance adds [Jump] to the generation of each box that has run and has a session. Workspaces are
// not in the backup, and those that were saved after it have higher generations than the restored
// boxes. A box with a lower generation than its workspace could not save it again. Nothing else may
// use the store yet. After an error Advance may be called again.
func Advance(ctx context.Context, store storage.Store) (boxes int, err error) {
	seen := map[storage.BoxID]bool{}
	for s, err := range storage.AllSessions(ctx, store, "", "") {
		if err != nil {
			return boxes, err
		}
		id := s.Box()
		if seen[id] {
			continue
		}
		seen[id] = true
		b, err := store.Box(ctx, id)
		if err != nil {
			return boxes, err
		}
		if b.Gen == 0 { // it has never run
			continue
		}
		b.Gen += Jump
		if err := store.SaveBox(ctx, b); err != nil {
			return boxes, errors.Join(errors.New("the table is in use already"), err)
		}
		boxes++
	}
	return boxes, nil
}
