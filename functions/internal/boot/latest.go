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
	looked  time.Time // when the store was last read; zero until the newest file was served once
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

// get returns the handler. If a newer file cannot be read or served, get logs that and returns the
// previous handler. A process that has not served the pushed file yet has none: get returns an
// error, because the deployed file may admit clients that the pushed file refuses.
func (l *latest[H]) get(ctx context.Context) (H, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.opened.settings.Pushed || !l.looked.IsZero() && time.Since(l.looked) < renewed {
		return l.now, nil
	}
	f, err := override.Load(ctx, l.opened.parts.Store)
	if err == nil && f.Version != l.version {
		servers := l.own
		if len(f.Text) > 0 {
			servers, err = f.Catalog()
		}
		if err == nil {
			err = l.serve(servers)
		}
		if err == nil {
			l.opened.parts.Log.Info("servers file taken", "version", f.Version, "by", f.By)
		}
	}
	if err != nil {
		l.opened.parts.Log.Error("the newest servers file cannot be served", "version", f.Version, "error", err)
		if l.looked.IsZero() {
			return l.now, err
		}
		f.Version = l.version
	}
	l.version, l.looked = f.Version, time.Now()
	return l.now, nil
}
