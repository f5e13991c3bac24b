// Package localtest holds code that the tests of this machine's stand-ins for AWS share.
// It has a function program with a gate that holds its invocations, and a network of
// pipes. It also has clients of WebSocket and @connections APIs. It depends on none of
// the stand-ins.
package localtest

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// Patience is much longer than any step takes. A test that waits longer is stuck.
const Patience = 20 * time.Second

// Eventually waits until a condition on real processes holds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(Patience)
	for !holds() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

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

// Alive reports whether a process with this id exists.
func Alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
