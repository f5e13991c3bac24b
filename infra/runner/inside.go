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

// Join connects a box to its host in the same program.
type Join func(frame.Joining) (frame.Link, error)

// abandonWithin is how long the processes of a box may take to end after a panic in the box's
// code.
const abandonWithin = 2 * time.Second

// Inside runs a box in this process, together with others, until the box sleeps, a newer runner
// runs it, or ctx ends. When ctx ends, calls in flight get some time to end; when kill is closed,
// they get none. The map env has the variables that the package comment lists, and those that
// servers may get; Inside reads no others. All boxes of this process share budget and memory.
// Inside calls join once, when the box is ready. When Inside returns, nothing of the box runs any
// more.
//
// A panic in the code of the box ends only that box. Its processes are killed, the host is not
// told that it sleeps, and the error describes the panic. After a panic the memory of the box, and
// its locks on installs, are not released.
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

// abandon kills the processes of a box whose code may be blocked for ever, for example after a
// panic.
func abandon(ctx context.Context, p *prepared, guarded *guard.Guard) {
	closed := make(chan struct{})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonWithin)
	defer cancel()
	guarded.Go(func() {
		defer close(closed)
		_ = p.box.Close(ctx, 0) // at the end of ctx, Close kills the processes that are left
	})
	select {
	case <-closed:
	case <-ctx.Done():
	}
	p.clear()
}
