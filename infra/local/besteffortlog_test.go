package local

import (
	"errors"
	"io/fs"
	"strings"
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
		if len(got) != 3 {
			t.Errorf("%d events in 130 s, want 3", len(got))
		}
		if e := got[0]; e.Kind != journal.LogLost || e.Reason != "log lines are lost: the disk of /data/logs is full" || e.Hint != "free some room, or name another folder with --data" {
			t.Errorf("%+v", e)
		}
		time.Sleep(time.Minute)
		log.to = broken{errors.New("odd")}
		_, err := log.Write(nil)
		synctest.Wait()
		if err != nil || !strings.HasSuffix(got[len(got)-1].Reason, "odd") {
			t.Errorf("%+v, %v", got[len(got)-1], err)
		}
	})
}
