// Package localtest has code that tests of packages below infra/local share: a network of pipes,
// and clients of WebSocket APIs.
package localtest

import (
	"testing"
	"time"
)

// Patience is much longer than any single step of a test takes.
const Patience = 20 * time.Second

// Wait returns the next value of a channel. The test fails after [Patience].
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
