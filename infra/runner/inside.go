package runner

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/guard"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// Join links a box to its host in the same program.
type Join func(frame.Joining) (frame.Link, error)

// abandonWithin is how long a box that has panicked gets to end its processes in order.
const abandonWithin = 2 * time.Second

// Inside runs a box in this process, which may have others, until the box sleeps, is fenced or
// ctx ends. The end of ctx gives calls in flight some time, and that of kill none. env has what
// the package comment lists, and the variables that servers may get; Inside reads no others.
// budget bounds what all boxes of this process hold, and memory their processes. join is called
// once, when the box is ready. Nothing of the box is left when Inside returns.
//
// A panic in the code of the box ends that box only. Its processes are killed, its link ends
// without a bye, and the error tells of the panic. What the box held stays in memory then,
// and so do locks of its installs.
func Inside(ctx context.Context, kill <-chan struct{}, env map[string]string, budget *guard.Budget, memory *guard.Memory, join Join, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	own := environment{}
	for name, value := range env {
		if !strings.HasPrefix(name, "DORMOUSE_") {
			own[name] = value
		}
	}
	guarded := guard.New(log, budget, memory)
	var box atomic.Pointer[prepared]
	ended := make(chan error, 1)
	guarded.Go(func() { ended <- host(ctx, env, own, log, guarded, box.Store, join) })
	select {
	case err := <-ended:
		if guarded.Err() == nil {
			return err
		}
	case <-guarded.Panicked():
	case <-kill:
	}
	cancel()
	if p := box.Load(); p != nil {
		abandon(ctx, p, guarded)
	}
	return cmp.Or(guarded.Err(), errKilled)
}

var errKilled = errors.New("the box did not end in time")

// abandon ends the processes of a box whose own code cannot be relied on any more: it may
// hold a lock for ever.
func abandon(ctx context.Context, p *prepared, guarded *guard.Guard) {
	closed := make(chan struct{})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonWithin)
	defer cancel()
	guarded.Go(func() {
		defer close(closed)
		_ = p.box.Close(ctx, 0) // kills the processes that are left
	})
	select {
	case <-closed:
	case <-ctx.Done():
	}
	p.clear()
}
