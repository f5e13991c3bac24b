//go:build aws

package boot

import (
	"context"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// folderForm is empty: a function that is deployed has no folder that lasts, and need
// not begin with what reads one.
const folderForm = ""

func forgetIn(string) func(context.Context, session.BoxID, string, session.Generation) error {
	return nil
}
