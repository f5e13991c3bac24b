package gather_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/gather"
)

const (
	gatherTime = 10 * time.Millisecond
	gatherMost = 256 << 10
)

// writes are the writes that came, one by one.
type writes struct{ all []string }

func (w *writes) Write(p []byte) (int, error) {
	w.all = append(w.all, string(p))
	return len(p), nil
}

func TestLinesOfOneMomentAreOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &writes{}
		g := &gather.Writer{To: to, Every: gatherTime, Most: gatherMost}
		for _, line := range []string{"a\n", "b\n"} {
			if n, err := g.Write([]byte(line)); n != len(line) || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}
		time.Sleep(gatherTime) // virtual
		synctest.Wait()
		if _, err := g.Write([]byte("c\n")); err != nil {
			t.Error(err)
		}
		g.Flush()
		if len(to.all) != 2 || to.all[0] != "a\nb\n" || to.all[1] != "c\n" {
			t.Errorf("writes: %q", to.all)
		}
		time.Sleep(gatherTime) // virtual: the timer of c finds nothing
	})
}

func TestMoreLinesThanWaitAreWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &writes{}
		g := &gather.Writer{To: to, Every: gatherTime, Most: gatherMost}
		line := append(bytes.Repeat([]byte{'x'}, gatherMost), '\n')
		if _, err := g.Write(line); err != nil {
			t.Error(err)
		}
		if len(to.all) != 1 || len(to.all[0]) != len(line) {
			t.Errorf("%d writes", len(to.all))
		}
		time.Sleep(gatherTime) // as above
	})
}
