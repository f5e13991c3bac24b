//go:build !aws

package boot

import "github.com/dormouse-mcp/dormouse/functions/wiring/kept"

// keptFolder removes workspaces from a folder of this machine.
var keptFolder = kept.Folder
