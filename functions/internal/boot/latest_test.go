package boot

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/config/override"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// instance is a function process whose handler is the list of its servers.
type instance struct {
	t      *testing.T
	store  *storagetest.Counting
	latest *latest[string]
	log    *bytes.Buffer
}

// begin returns a process with a servers file of its own that names "own".
func begin(t *testing.T, store storage.Store) *instance {
	t.Helper()
	p := &instance{t: t, store: storagetest.NewCounting(store), log: &bytes.Buffer{}}
	own, _, err := serversfile.Parse([]byte(`{"mcpServers":{"own":{"command":"x"}}}`), "servers.json", nil)
	commontest.OK(t, err)
	o := &opened{
		settings: wiring.Settings{Secret: bytes.Repeat([]byte("s"), 32), Pushed: true},
		parts:    wiring.Parts{Store: p.store, Meter: meter.New(meter.Options{}), Log: slog.New(slog.NewTextHandler(p.log, nil))},
	}
	p.latest, err = newLatest(o, own, func(f *wiring.Function) (string, error) {
		names := strings.Join(f.Servers.Names(), " ")
		if names == "wrong" {
			return "", errors.New("this program has no native server")
		}
		return names, nil
	})
	commontest.OK(t, err)
	return p
}

// serves checks which servers an invocation finds.
func (p *instance) serves(want string) {
	p.t.Helper()
	if got, err := p.latest.get(p.t.Context()); err != nil || got != want {
		p.t.Errorf("served is %q, %v; want %q", got, err, want)
	}
}

// push stores a file that names one server, or withdraws the file for "".
func (p *instance) push(server string) {
	p.t.Helper()
	f := override.File{Name: "servers.json", By: "ada"}
	if server != "" {
		f.Text = []byte(`{"mcpServers":{"` + server + `":{"command":"x"}}}`)
	}
	_, err := override.Save(p.t.Context(), p.store, f)
	commontest.OK(p.t, err)
}

// A file that cannot be served leaves the one before.
func TestAPushedFileIsServedWithinThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := begin(t, storagetest.NewMemory())
		p.serves("own")
		for _, pushed := range [][2]string{{"first", "first"}, {"wrong", "first"}, {"second", "second"}, {"", "own"}} {
			p.push(pushed[0])
			time.Sleep(renewed)
			p.serves(pushed[1])
			// A new process has no file before.
			if got, err := begin(t, p.store).latest.get(t.Context()); (err != nil) != (pushed[0] == "wrong") || err == nil && got != pushed[1] {
				t.Errorf("a process that begins serves %q, %v", got, err)
			}
		}
		commontest.Contains(t, "the log", "cannot be served", p.log.String())
	})
}

// The servers file costs at most one read in thirty seconds, whatever the number of
// invocations, and none without invocations.
func TestTheServersFileCostsOneReadEveryThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := begin(t, storagetest.NewMemory())
		p.push("one")
		p.store.Reset()
		for range 100 { // for five minutes, 20 calls at each moment
			for range 20 {
				p.serves("one")
			}
			time.Sleep(3 * time.Second)
		}
		time.Sleep(24 * time.Hour)
		c := p.store.Counts()
		commontest.EqualIn(t, "operations that 2,000 invocations in five minutes and a day of silence cost", 10, c.Reads+c.Writes+c.Waits)
	})
}

func TestAStoreThatFailsServesTheLastFileAndNeverAnOlderOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		p := begin(t, failing{storagetest.NewMemory(), &down})
		if got, err := p.latest.get(t.Context()); !errors.Is(err, storage.Unavailable) {
			t.Errorf("before the first look %q is served, %v", got, err)
		}
		down = false
		p.push("one")
		p.serves("one")
		down = true
		time.Sleep(renewed)
		p.serves("one")
	})
}

// failing is a store that does not answer while down is true.
type failing struct {
	storage.Store
	down *bool
}

// LoadValue implements storage.Store.
func (f failing) LoadValue(ctx context.Context, k storage.ValueKey) (storage.Value, error) {
	if *f.down {
		return storage.Value{}, storage.Errorf(storage.Unavailable, "the store does not answer")
	}
	return f.Store.LoadValue(ctx, k)
}
