package runner

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/gather"
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
	lines *gather.Writer
}

// newGathered makes the handler of a log of JSON.
func newGathered(to io.Writer) gathered {
	l := &gather.Writer{To: to, Every: gatherFor, Most: maxGathered}
	return gathered{slog.NewJSONHandler(l, nil), l}
}

// Handle implements [slog.Handler].
func (g gathered) Handle(ctx context.Context, r slog.Record) error {
	err := g.Handler.Handle(ctx, r)
	if r.Level > slog.LevelInfo {
		g.lines.Flush()
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
