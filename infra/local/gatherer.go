package local

import (
	"io"
	"sync"
	"time"
)

// gatherer is a writer of log lines that puts those of one moment into one write: under
// load there are three for each call, and who reads them would be woken for each. It
// drops the errors of to. The owner calls flush at the end.
type gatherer struct {
	to io.Writer

	mu    sync.Mutex
	lines []byte
	spare []byte

	writing sync.Mutex
}

const (
	gatherTime = 10 * time.Millisecond
	// gatherMost is from when on who writes waits for to.
	gatherMost = 256 << 10
)

// Write takes whole lines.
func (g *gatherer) Write(p []byte) (int, error) {
	g.mu.Lock()
	if len(g.lines) == 0 {
		time.AfterFunc(gatherTime, g.flush)
	}
	g.lines = append(g.lines, p...)
	full := len(g.lines) >= gatherMost
	g.mu.Unlock()
	if full {
		g.flush()
	}
	return len(p), nil
}

// flush returns when all that was written before is out.
func (g *gatherer) flush() {
	g.writing.Lock()
	defer g.writing.Unlock()
	g.mu.Lock()
	out := g.lines
	g.lines, g.spare = g.spare[:0], nil
	g.mu.Unlock()
	if len(out) > 0 {
		_, _ = g.to.Write(out)
	}
	g.spare = out
}
