package boot

import (
	"fmt"
	"os"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
)

// Values of [EnvAccess].
const (
	accessKeys  = "keys"  // callers need an API key; the default
	accessOAuth = "oauth" // callers need an API key, or sign in at this endpoint's own authorization server
	accessIDP   = "idp"   // callers need an API key, or a token of an identity provider
	accessOpen  = "open"  // callers need nothing; allowed only on one machine
)

// access sets the fields of s that say who may call. It allows accessOpen only on one machine: under
// the emulator, or under sam local.
func access(s *wiring.Settings) error {
	oneMachine := local().URL != "" || os.Getenv(envSAMLocal) == "true"
	switch mode := os.Getenv(EnvAccess); {
	case mode == "" || mode == accessKeys:
		return nil
	case mode == accessOAuth:
		of, err := wiring.ReadBroker(s.Servers, os.Getenv(EnvPublicURL), os.Getenv(EnvClientSecret), local().Loopback)
		if err != nil {
			return fmt.Errorf("%s is %q: %w", EnvAccess, mode, err)
		}
		s.Access, s.AuthServer = of, true
		return nil
	case mode == accessIDP:
		of, err := wiring.ReadAccess(s.Servers, os.Getenv(EnvPublicURL), os.Getenv(EnvClientSecret))
		if err != nil {
			return fmt.Errorf("%s is %q: %w", EnvAccess, mode, err)
		}
		s.Access = of
		return nil
	case mode == accessOpen && oneMachine:
		s.Open = true
		return nil
	case mode == accessOpen:
		return fmt.Errorf("%s is %q, which is for one machine only; deployed, it is %q, %q or %q", EnvAccess, mode, accessKeys, accessOAuth, accessIDP)
	default:
		return fmt.Errorf("%s is %q; want %q, %q, %q or %q", EnvAccess, mode, accessKeys, accessOAuth, accessIDP, accessOpen)
	}
}
