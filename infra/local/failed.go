package local

import (
	"maps"
	"slices"
	"sync"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/box"
)

// failures remembers why servers could not be started, for operators. It keeps that while
// the server's box sleeps, because the box itself does not.
type failures struct {
	mu  sync.Mutex
	why map[string]string // by server, until it is ready or its definition changes
}

// Record takes an event of the machine.
func (f *failures) Record(e journal.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e.Kind {
	case journal.ServerFailed:
		if e.Phase != string(box.PhaseRuntime) { // a server that was ready before is no failure: it starts again with the next message
			f.why[e.Name] = e.Reason
		}
	case journal.ServerReady:
		delete(f.why, e.Name)
	case journal.ServersChanged:
		for _, name := range slices.Concat(e.Changed, e.Removed) {
			delete(f.why, name)
		}
	}
}

// now returns the reasons by server. The caller owns them.
func (f *failures) now() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.why)
}
