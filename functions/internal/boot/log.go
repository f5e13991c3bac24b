package boot

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/loop"
)

// newLog writes JSON lines to stderr. On one machine the line of an invocation, which
// each ends with, goes to the emulator with that end.
func newLog() *slog.Logger {
	if os.Getenv(EnvRuntimeSocket) == "" {
		return slog.New(slog.NewJSONHandler(os.Stderr, nil))
	}
	return slog.New(newEnding(os.Stderr))
}

// ending is a slog.Handler that has [loop.Say] take the lines that say what an
// invocation has used.
type ending struct {
	slog.Handler // writes to line
	line         *oneLine
	rest         io.Writer // gets all other lines
}

// oneLine is the line that is being written.
type oneLine struct {
	mu   sync.Mutex
	text []byte
}

// Write keeps p.
func (l *oneLine) Write(p []byte) (int, error) {
	l.text = append(l.text[:0], p...)
	return len(p), nil
}

func newEnding(rest io.Writer) ending {
	line := &oneLine{}
	return ending{slog.NewJSONHandler(line, nil), line, rest}
}

// Handle writes one line.
func (e ending) Handle(ctx context.Context, r slog.Record) error {
	e.line.mu.Lock()
	defer e.line.mu.Unlock()
	if err := e.Handler.Handle(ctx, r); err != nil {
		return fmt.Errorf("write a log line: %w", err)
	}
	if spends(r) && loop.Say(ctx, e.line.text) {
		return nil
	}
	_, err := e.rest.Write(e.line.text)
	return err
}

// spends is true for the line with what [meter.Meter.Spent] says.
func spends(r slog.Record) (yes bool) {
	r.Attrs(func(a slog.Attr) bool {
		yes = a.Key == "units"
		return !yes
	})
	return yes
}

// WithAttrs implements slog.Handler.
func (e ending) WithAttrs(attrs []slog.Attr) slog.Handler {
	e.Handler = e.Handler.WithAttrs(attrs)
	return e
}

// WithGroup implements slog.Handler.
func (e ending) WithGroup(name string) slog.Handler {
	e.Handler = e.Handler.WithGroup(name)
	return e
}
