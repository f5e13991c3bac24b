//go:build !aws

package boot

import (
	"context"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// keptFolder removes what was kept in a folder of this machine.
func keptFolder(path string) wiring.Forget {
	folder := snapshot.NewFolder(path)
	return func(ctx context.Context, box session.BoxID, owner string, gen session.Generation) error {
		return folder.Delete(ctx, snapshot.Key(string(box), owner), int64(gen))
	}
}
