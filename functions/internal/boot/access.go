package boot

import (
	"fmt"
	"os"

	"github.com/dormouse-mcp/dormouse/shared/auth"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// What DORMOUSE_ACCESS may be.
const (
	accessKeys = "keys" // callers need an API key; also if nothing is said
	accessOpen = "open" // everybody is let in; on one machine only
)

// access is how callers are authenticated. One machine is told by the unix socket
// its functions take invocations from, or by SAM, which runs them one by one.
func access(store session.Keys) (auth.Authenticator, error) {
	oneMachine := os.Getenv(EnvRuntimeSocket) != "" || os.Getenv(envSAMLocal) == "true"
	switch mode := os.Getenv(EnvAccess); {
	case mode == "" || mode == accessKeys:
		return auth.NewKeys(store), nil
	case mode == accessOpen && oneMachine:
		return auth.Open{}, nil
	case mode == accessOpen:
		return nil, fmt.Errorf("%s is %q, which is for one machine only; deployed, it is %q", EnvAccess, mode, accessKeys)
	default:
		return nil, fmt.Errorf("%s is %q; want %q or %q", EnvAccess, mode, accessKeys, accessOpen)
	}
}
