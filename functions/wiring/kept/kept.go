// Package kept removes workspaces from a folder of one machine. Deployed functions do not
// link it.
package kept

import (
	"context"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Folder returns a function that removes kept workspaces from the folder at path.
func Folder(path string) wiring.Forget {
	folder := snapshot.NewFolder(path)
	return func(ctx context.Context, box storage.BoxID, owner string, gen storage.Generation) error {
		return folder.Delete(ctx, snapshot.Key(string(box), owner), int64(gen))
	}
}
