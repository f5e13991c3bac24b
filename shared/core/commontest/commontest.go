// Package commontest has what tests of several packages share.
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

// Same reports how got differs from want, by cmp.Diff, if it does. The test goes on.
func Same(t testing.TB, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
