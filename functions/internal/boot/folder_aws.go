//go:build aws

package boot

import "github.com/dormouse-mcp/dormouse/functions/wiring"

// keptFolder is nil: a function that is deployed has no folder that lasts, and need not
// link what reads one.
var keptFolder func(path string) wiring.Forget
