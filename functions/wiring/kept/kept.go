// Package kept removes saved workspaces and saved memory of processes from a folder on one
// machine. Deployed functions do not link it.
package kept

import (
	"context"
	"errors"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/box/memory"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Folder returns a function that removes what is saved for an owner from the folder at path. If
// remembers is set, the owner is a session, and the function also removes the saved memory of its
// process. The memory may be beside any workspace, so the function searches all.
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
