package commontest_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestLinesOfManyGoroutinesAreWhole(t *testing.T) {
	var l commontest.Lines
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				_, _ = fmt.Fprintln(&l, "line")
			}
		})
	}
	all.Wait()
	if n := len(l.String()); n != 8*100*len("line\n") {
		t.Errorf("%d bytes", n)
	}
	if taken, left := l.Take(), l.String(); len(taken) == 0 || left != "" {
		t.Errorf("%d bytes were taken, %q is left", len(taken), left)
	}
}
