// Package commontest has helpers for the tests of all packages: checks of values and errors, free
// addresses, and waiting for conditions.
package commontest

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Lines holds log lines that several goroutines write. The zero value is empty.
type Lines struct {
	mu  sync.Mutex
	all strings.Builder
}

// Write implements io.Writer. It never fails.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// String returns what was written so far.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// Take returns what was written since the last Take, and forgets it.
func (l *Lines) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.all.String()
	l.all.Reset()
	return text
}

// OK fails the test at once if there is an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// OKIn is like [OK], and begins the message with the given name of a step.
func OKIn(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Check reports an error, if there is one. The test goes on.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// CheckIn is like [Check], and begins the message with the given name of a step.
func CheckIn(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// Equal reports an error if got is not want. The test goes on.
func Equal[T comparable](t testing.TB, want, got T) {
	t.Helper()
	EqualIn(t, "", want, got)
}

// EqualIn is like [Equal], and begins the message with the given name of the value.
func EqualIn[T comparable](t testing.TB, what string, want, got T) {
	t.Helper()
	if got == want {
		return
	}
	if what != "" {
		what += ": "
	}
	if _, ok := any(got).(string); ok {
		t.Errorf("%sgot %q, want %q", what, any(got), any(want))
		return
	}
	t.Errorf("%sgot %+v, want %+v", what, got, want)
}

// Same reports an error with the output of cmp.Diff if got differs from want. The test goes on.
func Same(t testing.TB, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// SameIn is like [Same], and begins the message with the given name of the value.
func SameIn(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s: -want +got:\n%s", what, diff)
	}
}

// Contains reports an error if text does not contain part. The argument what, if not "", names the text
// in the message. The test goes on.
func Contains(t testing.TB, what, part, text string) {
	t.Helper()
	if strings.Contains(text, part) {
		return
	}
	if what != "" {
		what += ": "
	}
	t.Errorf("%sgot %s, want it to have %q", what, text, part)
}
