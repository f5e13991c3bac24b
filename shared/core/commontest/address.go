package commontest

import (
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
)

// ports counts the ports that FreeAddress has tried, two for each address.
var ports atomic.Int32

// FreeAddress returns a loopback address, HOST:PORT. Its port and the next higher port are free. Both
// are below the ephemeral ports of Linux. Tests that run at the same time usually get different
// addresses.
func FreeAddress(t testing.TB) string {
	t.Helper()
	for range 1_000 {
		port := 10_000 + (os.Getpid()*16+int(ports.Add(2)))%22_000&^1
		address := "127.0.0.1:" + strconv.Itoa(port)
		if Free(t, address) && Free(t, "127.0.0.1:"+strconv.Itoa(port+1)) {
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

// Free reports whether no program listens at an address.
func Free(t testing.TB, address string) bool {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	return err == nil && l.Close() == nil
}
