// Package localtest holds code that tests of one machine share: a network of pipes, and
// clients of WebSocket APIs.
package localtest

import (
	"testing"
	"time"
)

// Patience is much longer than any step takes. A test that waits longer is stuck.
const Patience = 20 * time.Second

// Wait returns the next value of a channel.
func Wait[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(Patience):
		t.Fatal("waited in vain")
		panic("unreachable")
	}
}
