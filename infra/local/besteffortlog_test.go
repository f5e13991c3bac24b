package local

import (
	"io/fs"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// broken is a file whose writes fail.
type broken struct{ err error }

func (b broken) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "x", Err: b.err}
}

func TestALogThatCannotBeWrittenIsSaidOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []journal.Event
		log := &bestEffortLog{to: broken{syscall.ENOSPC}, lost: logLost(journal.NewRecorder(func(e journal.Event) { got = append(got, e) }), "/data/logs")}
		for range 130 {
			if n, err := log.Write([]byte("line")); n != 4 || err != nil {
				t.Errorf("what happens depends on its log: %d, %v", n, err)
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if e := got[0]; len(got) != 3 || e.Kind != journal.LogLost || e.Reason != "log lines are lost: the disk of /data/logs is full" || e.Hint != "free some room, or name another folder with --data" {
			t.Errorf("want 3 events in 130 s: %+v", got)
		}
	})
}
