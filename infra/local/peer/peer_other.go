//go:build !linux

package peer

import "net"

// StartedHere reports false: where this package knows nothing, no program is confined.
func StartedHere(net.Conn, func(uid uint32) bool) bool { return false }
