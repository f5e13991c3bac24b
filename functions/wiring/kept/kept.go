// Package kept removes workspaces that were kept in a folder of one machine. Functions that
// are deployed do not link it.
package kept

import (
	"context"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Folder removes what boxes have kept in the folder of a path.
func Folder(path string) wiring.Forget {
	folder := snapshot.NewFolder(path)
	return func(ctx context.Context, box session.BoxID, owner string, gen session.Generation) error {
		return folder.Delete(ctx, snapshot.Key(string(box), owner), int64(gen))
	}
}
