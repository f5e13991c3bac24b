package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// gatherFor is how long a line of the log may wait for others.
const gatherFor = 200 * time.Millisecond

// maxGathered bounds what waits, in bytes.
const maxGathered = 32 << 10

// gathered writes lines of a log together: there is one for each message, and neither the
// runner nor who reads them has to wake for each. A warning or an error is written at
// once, behind those that wait.
type gathered struct {
	slog.Handler
	lines *lines
}

// newGathered makes the handler of a log of JSON.
func newGathered(to io.Writer) gathered {
	l := &lines{to: to}
	return gathered{slog.NewJSONHandler(l, nil), l}
}

// Handle implements [slog.Handler].
func (g gathered) Handle(ctx context.Context, r slog.Record) error {
	err := g.Handler.Handle(ctx, r)
	if r.Level > slog.LevelInfo {
		g.lines.flush()
	}
	return err
}

// WithAttrs implements [slog.Handler].
func (g gathered) WithAttrs(attrs []slog.Attr) slog.Handler {
	return gathered{g.Handler.WithAttrs(attrs), g.lines}
}

// WithGroup implements [slog.Handler].
func (g gathered) WithGroup(name string) slog.Handler {
	return gathered{g.Handler.WithGroup(name), g.lines}
}

// lines are those that wait.
type lines struct {
	mu    sync.Mutex
	to    io.Writer
	wait  []byte
	later *time.Timer // set while some wait
}

// Write takes a line.
func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wait = append(l.wait, line...)
	switch {
	case len(l.wait) > maxGathered:
		l.write()
	case l.later == nil:
		l.later = time.AfterFunc(gatherFor, l.flush)
	}
	return len(line), nil
}

// flush writes what waits.
func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write()
}

func (l *lines) write() {
	if l.later != nil {
		l.later.Stop()
		l.later = nil
	}
	if len(l.wait) > 0 {
		_, _ = l.to.Write(l.wait) // there is nobody to tell
		l.wait = l.wait[:0]
	}
}
