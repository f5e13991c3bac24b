package boot

import (
	"fmt"
	"os"
)

// What DORMOUSE_ACCESS may be.
const (
	accessKeys = "keys" // callers need an API key; also if nothing is said
	accessOpen = "open" // everybody is let in; on one machine only
)

// access says whether everybody is let in. Only on one machine may that be: under the
// emulator, or under SAM, which runs functions one by one.
func access() (open bool, err error) {
	oneMachine := os.Getenv(EnvLocal) != "" || os.Getenv(envSAMLocal) == "true"
	switch mode := os.Getenv(EnvAccess); {
	case mode == "" || mode == accessKeys:
		return false, nil
	case mode == accessOpen && oneMachine:
		return true, nil
	case mode == accessOpen:
		return false, fmt.Errorf("%s is %q, which is for one machine only; deployed, it is %q", EnvAccess, mode, accessKeys)
	default:
		return false, fmt.Errorf("%s is %q; want %q or %q", EnvAccess, mode, accessKeys, accessOpen)
	}
}
