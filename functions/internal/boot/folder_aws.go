//go:build aws

package boot

import "github.com/dormouse-mcp/dormouse/functions/wiring"

// keptFolder is nil: a deployed function has no permanent folder, so the code for one is not
// linked.
var keptFolder func(path string) wiring.Forget
