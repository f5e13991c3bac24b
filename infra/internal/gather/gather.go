// Package gather puts the lines of a log that come within a moment into one write:
// under load there are several for each call, and neither who writes them nor who
// reads them has to wake for each.
package gather

import (
	"io"
	"sync"
	"time"
)

// Writer is safe for concurrent use. It drops the errors of To. The owner calls Flush
// at the end. To, Every and Most are required.
type Writer struct {
	To    io.Writer
	Every time.Duration // how long a line may wait for others
	Most  int           // bytes; who writes as much waits for To

	mu    sync.Mutex
	lines []byte
	spare []byte

	writing sync.Mutex
}

// Write takes whole lines. It returns no error.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	if len(w.lines) == 0 {
		time.AfterFunc(w.Every, w.Flush)
	}
	w.lines = append(w.lines, p...)
	full := len(w.lines) >= w.Most
	w.mu.Unlock()
	if full {
		w.Flush()
	}
	return len(p), nil
}

// Flush returns when all that was written before is out.
func (w *Writer) Flush() {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	out := w.lines
	w.lines, w.spare = w.spare[:0], nil
	w.mu.Unlock()
	if len(out) > 0 {
		_, _ = w.To.Write(out)
	}
	w.spare = out
}
