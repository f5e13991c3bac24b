package boot

import (
	"cmp"
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
	url, secret := os.Getenv(EnvPublicURL), os.Getenv(EnvClientSecret)
	mode := cmp.Or(os.Getenv(EnvAccess), accessKeys)
	var err error
	switch {
	case mode == accessKeys:
	case mode == accessOAuth:
		s.AuthServer = true
		s.Access, err = wiring.ReadBroker(s.Servers, url, secret, local().Loopback)
	case mode == accessIDP:
		s.Access, err = wiring.ReadAccess(s.Servers, url, secret)
	case mode == accessOpen && oneMachine:
		s.Open = true
	default:
		err = fmt.Errorf("want %q, %q or %q, or on one machine %q", accessKeys, accessOAuth, accessIDP, accessOpen)
	}
	if err != nil {
		return fmt.Errorf("%s is %q: %w", EnvAccess, mode, err)
	}
	return nil
}
