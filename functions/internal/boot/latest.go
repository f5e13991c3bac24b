package boot

import (
	"context"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/config/override"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// renewed is how long a process serves a version of the servers file before it looks for a newer
// one. It looks only during an invocation, with one read of the store.
const renewed = 30 * time.Second

// latest has the handler for the newest servers file: the one that an operator has pushed last to
// the store, or if there is none, the one that was deployed with the function. It is safe for
// concurrent use.
type latest[H any] struct {
	opened *opened
	own    *serversfile.File
	build  func(*wiring.Function) (H, error)

	mu      sync.Mutex
	now     H         // handler for the servers file that is served
	version int64     // version of the pushed servers file that is served; 0 for the deployed one
	looked  time.Time // when the store was last read; zero until that has succeeded once
}

func newLatest[H any](o *opened, own *serversfile.File, build func(*wiring.Function) (H, error)) (*latest[H], error) {
	l := &latest[H]{opened: o, own: own, build: build}
	return l, l.serve(own)
}

func (l *latest[H]) serve(servers *serversfile.File) error {
	f, err := l.opened.function(servers)
	if err != nil {
		return err
	}
	h, err := l.build(f)
	if err == nil {
		l.now = h
	}
	return err
}

// get returns the handler. If a pushed file cannot be served, get logs that and returns the
// previous handler. If no read of the store has succeeded yet, get returns an error with
// the code Unavailable, because the deployed file may admit clients that the pushed file refuses.
func (l *latest[H]) get(ctx context.Context) (H, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.opened.settings.Pushed || !l.looked.IsZero() && time.Since(l.looked) < renewed {
		return l.now, nil
	}
	first := l.looked.IsZero()
	f, err := override.Load(ctx, l.opened.parts.Store)
	if err != nil && first {
		return l.now, err
	}
	l.looked = time.Now()
	switch {
	case err != nil:
		l.opened.parts.Log.Warn("the pushed servers file could not be read; the one before it is served", "error", err)
		return l.now, nil
	case f.Version == l.version:
		return l.now, nil
	}
	l.version = f.Version
	servers := l.own
	if len(f.Text) > 0 {
		servers, err = f.Catalog()
	}
	if err == nil {
		err = l.serve(servers)
	}
	if err != nil {
		l.opened.parts.Log.Error("the pushed servers file cannot be served; the one before it still is", "version", f.Version, "error", err)
		return l.now, nil
	}
	l.opened.parts.Log.Info("servers file taken", "version", f.Version, "by", f.By)
	return l.now, nil
}
