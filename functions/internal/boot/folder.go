//go:build !aws

package boot

import "github.com/dormouse-mcp/dormouse/functions/wiring/kept"

// keptFolder removes workspaces from a folder on this machine.
var keptFolder = kept.Folder
