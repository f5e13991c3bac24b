package local

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/box"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
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

// remember takes the reasons of an earlier run from the history: those of servers whose last
// start has failed.
func (f *failures) remember(ctx context.Context, names []string, starts func(context.Context, api.StartQuery) ([]api.Start, error)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		last, err := starts(ctx, api.StartQuery{Server: name, Limit: 1})
		if err != nil {
			return err
		}
		if len(last) > 0 && last[0].Failed && last[0].Phase != string(box.PhaseRuntime) {
			f.why[name] = cmp.Or(last[0].Reason, "its last start failed")
		}
	}
	return nil
}

// missing says why the program of a server is not on this machine, nil if it is.
func (m *machine) missing(s serversfile.Server) error {
	_, err := runner.Find(s, m.environ.get("PATH"), serversfile.FolderOf(m.cfg.Servers))
	return err
}

// now returns the reasons by server. The caller owns them.
func (f *failures) now() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.why)
}
