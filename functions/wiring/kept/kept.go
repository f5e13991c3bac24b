// Package kept removes workspaces, and the memory of processes that sleep, from a folder of
// one machine. Deployed functions do not link it.
package kept

import (
	"context"
	"errors"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Folder returns a function that removes what is kept of an owner from the folder at path. If
// the owner is a session of a server that remembers, that includes the memory of its process,
// which may be beside a workspace that all sessions of a principal share. The search for that
// reads the pointers of all workspaces, so it is made for such servers only.
func Folder(path string) wiring.Forget {
	folder := snapshot.NewFolder(path)
	return func(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation, remembers bool) error {
		var err error
		if remembers {
			_, err = memory.Forget(folder, string(box), owner)
		}
		return errors.Join(err, folder.Delete(ctx, snapshot.Key(string(box), owner), int64(gen)))
	}
}
