// Package restored prepares a store that was restored from a backup for use.
package restored

import (
	"context"
	"errors"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Jump is what Advance adds to the generation of a box. No box wakes as often between a
// backup and its use.
const Jump storage.Generation = 1_000_000

// Advance raises the generations of the boxes of all sessions, and returns how many boxes
// there are. A box of an older backup would otherwise have a lower generation than the
// workspaces that it saved since then. It could not save a workspace again. Advance is
// for a store that nothing else uses yet. After an error it may be called again.
func Advance(ctx context.Context, store storage.Store) (boxes int, err error) {
	const page = 1000
	seen := map[storage.BoxID]bool{}
	for after := storage.ID(""); ; {
		sessions, err := store.List(ctx, "", after, page)
		if err != nil {
			return boxes, err
		}
		for _, s := range sessions {
			after = s.ID
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
		if len(sessions) < page {
			return boxes, nil
		}
	}
}
