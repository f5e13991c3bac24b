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

// failures remembers for operators why servers could not be started, also while their boxes are
// asleep.
type failures struct {
	mu  sync.Mutex
	why map[string]string // by server, until the server is ready or its definition changes
}

// Record updates the reasons with an event of the journal.
func (f *failures) Record(e journal.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e.Kind {
	case journal.ServerFailed:
		if e.Phase != string(box.PhaseRuntime) { // a server that failed after it was ready starts again with the next message
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

// remember reads the reasons of an earlier run from the history, for servers whose last start
// failed.
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

// missing returns an error if the program of a server is not on this machine.
func (m *machine) missing(s serversfile.Server) error {
	_, err := runner.Find(s, m.environ.get("PATH"), serversfile.FolderOf(m.cfg.Servers))
	return err
}

// reasons returns a copy of f.why.
func (f *failures) reasons() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.why)
}
