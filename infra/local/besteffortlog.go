package local

import (
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// logLost returns a function that reports to the journal that log lines of a folder are lost.
func logLost(to *journal.Recorder, folder string) func(error) {
	return func(err error) {
		why := "log lines are lost: " + err.Error()
		hint := "make " + folder + " writable"
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			why, hint = "log lines are lost: the disk of "+folder+" is full", "free some room, or name another folder with --data"
		}
		to.Record(journal.Event{Kind: journal.LogLost, Reason: why, Hint: hint})
	}
}

// bestEffortLog is a log whose Write never fails: an unwritable log must not stop the program.
// While writes fail, Write calls l.lost once a minute at most, in a new goroutine, because l.lost may
// need a lock that the caller of Write holds.
type bestEffortLog struct {
	to   io.Writer
	lost func(error)

	mu   sync.Mutex
	said time.Time
}

// Write implements io.Writer.
func (l *bestEffortLog) Write(p []byte) (int, error) {
	_, err := l.to.Write(p)
	if err == nil {
		return len(p), nil
	}
	l.mu.Lock()
	due := time.Since(l.said) >= time.Minute
	if due {
		l.said = time.Now()
	}
	l.mu.Unlock()
	if due {
		go l.lost(err)
	}
	return len(p), nil
}
