// Package peer finds out which program on this machine has the other end of a TCP connection. On
// systems other than Linux it finds nothing.
package peer
