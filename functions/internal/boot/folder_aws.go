//go:build aws

package boot

import "github.com/dormouse-mcp/dormouse/functions/wiring"

// keptFolder is nil: a deployed function has no lasting folder, so it does not link the
// code for one.
var keptFolder func(path string) wiring.Forget
