package pooltest

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/fleettest"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// serve serves the pool below a path and returns a client of it.
func serve(t *testing.T, p *process.Pool) *Client {
	t.Helper()
	server := httptest.NewServer(http.StripPrefix("/secret/fleet", Handler(p)))
	t.Cleanup(server.Close)
	c := NewClient(server.URL+"/secret/fleet", time.Time{})
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// signals has a channel for each thing that happens to a task.
type signals struct{ chans sync.Map }

func (s *signals) of(what, id string) chan struct{} {
	c, _ := s.chans.LoadOrStore(what+id, make(chan struct{}, 10))
	return c.(chan struct{}) //nolint:forcetypeassert // only of adds to it
}

func (s *signals) wait(what string) func(t *testing.T, id string) {
	return func(_ *testing.T, id string) { <-s.of(what, id) }
}

// open returns a pool whose tasks are in this program, and what happens to them.
func open(t *testing.T) (*process.Pool, *signals) {
	t.Helper()
	s := &signals{}
	p := process.NewPool(process.Config{
		MaxTasks: fleettest.Room, Command: "/does/not/exist", Logger: slog.New(slog.DiscardHandler),
		Prepare: func(_ context.Context, t fleet.Task) (fleet.Task, error) {
			t.Place = process.Inside
			return t, nil
		},
		OnStop: func(e fleet.Status) { s.of("end", e.ID) <- struct{}{} },
		Output: func(e fleet.Status, _ string) { s.of("line", e.ID) <- struct{}{} },
		Inside: func(ctx context.Context, kill <-chan struct{}, env map[string]string, line func(string)) int {
			if env["EXITS"] != "" {
				return 3
			}
			line("ready")
			select {
			case <-ctx.Done():
				return 0
			case <-kill:
				return -1
			}
		},
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel() // the test does not wait for what it left running
		_ = p.Close(ctx)
	})
	return p, s
}

func TestTheClientKeepsTheContract(t *testing.T) {
	fleettest.Run(t, func(t *testing.T) fleettest.Harness {
		p, s := open(t)
		return fleettest.Harness{
			Fleet: serve(t, p), Waits: map[string]string{}, Exits3: map[string]string{"EXITS": "3"}, Ready: s.wait("line"), Ended: s.wait("end"),
		}
	})
}

// The contract has the errors of a full pool and of tasks that cannot be run.
func TestErrorsKeepTheirKindThroughTheClient(t *testing.T) {
	p, _ := open(t)
	c := serve(t, p)
	huge := fleet.Task{ClientToken: "a", Box: strings.Repeat("x", maxTaskBytes)}
	if _, err := c.Run(t.Context(), huge); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("huge: error = %v", err)
	}
	commontest.OK(t, p.Close(t.Context()))
	if _, err := c.Run(t.Context(), fleet.Task{ClientToken: "b"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("closed: error = %v", err)
	}
}

func TestAPoolThatIsNotThereIsUnavailable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	elsewhere := NewClient(server.URL, time.Time{})
	if _, err := elsewhere.Tasks(t.Context()); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("what is not the API of a pool: %v", err)
	}
	server.Close()
	c := NewClient(server.URL, time.Time{})
	_, err := c.Tasks(t.Context())
	if !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("error = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Tasks(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
}
