//go:build !aws

package boot

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/box/snapshot"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

const folderForm = "folder:PATH or "

// forgetIn removes what was kept in a folder of this machine.
func forgetIn(path string) func(context.Context, session.BoxID, string, session.Generation) error {
	folder := snapshot.NewFolder(path)
	return func(ctx context.Context, box session.BoxID, owner string, gen session.Generation) error {
		return folder.Delete(ctx, snapshot.Key(string(box), owner), int64(gen))
	}
}
