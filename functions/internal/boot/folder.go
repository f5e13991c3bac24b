//go:build !aws

package boot

import "github.com/dormouse-mcp/dormouse/functions/wiring/kept"

// keptFolder removes what was kept in a folder of this machine.
var keptFolder = kept.Folder
