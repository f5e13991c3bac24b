package process

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// serve serves the pool below a path and returns a client of it.
func serve(t *testing.T, p *Pool) *Client {
	t.Helper()
	server := httptest.NewServer(http.StripPrefix("/secret/fleet", p.Handler()))
	t.Cleanup(server.Close)
	c := NewClient(server.URL+"/secret/fleet", time.Time{})
	t.Cleanup(c.CloseIdle)
	return c
}

func TestATaskLivesItsLifeThroughTheClient(t *testing.T) {
	h := newHarness(t, nil)
	c := serve(t, h.Pool)
	task := fleet.Task{ClientToken: "a", Box: "b", Server: "s", Env: map[string]string{roleEnv: "polite"}}
	id, err := c.Run(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Run(t.Context(), task); err != nil || again != id {
		t.Errorf("second run = %s, %v; want %s", again, err, id)
	}
	h.line()
	list, err := c.Tasks(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Box != "b" || list[0].State != fleet.Running {
		t.Fatalf("tasks = %+v, %v", list, err)
	}
	if err := c.Stop(t.Context(), id, "slept & gone"); err != nil {
		t.Fatal(err)
	}
	h.end()
	list, err = c.Tasks(t.Context())
	if err != nil || list[0].State != fleet.Stopped || list[0].Reason != "slept & gone" || list[0].Stopped.IsZero() {
		t.Errorf("tasks = %+v, %v", list, err)
	}
}

func TestErrorsKeepTheirKindThroughTheClient(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxTasks = 1 })
	c := serve(t, h.Pool)
	h.run("a", "polite")
	tests := map[string]struct {
		task fleet.Task
		want error
	}{
		"full":     {fleet.Task{ClientToken: "b"}, fleet.ErrCapacity},
		"no token": {fleet.Task{}, fleet.ErrInvalid},
		"huge":     {fleet.Task{ClientToken: "c", Box: strings.Repeat("x", maxTaskBytes)}, fleet.ErrInvalid},
	}
	for name, test := range tests {
		if _, err := c.Run(t.Context(), test.task); !errors.Is(err, test.want) {
			t.Errorf("%s: error = %v, want %v", name, err, test.want)
		}
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(t.Context(), fleet.Task{ClientToken: "d"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("closed: error = %v", err)
	}
}

func TestStopOfAnUnknownTaskThroughTheClientIsNoError(t *testing.T) {
	h := newHarness(t, nil)
	c := serve(t, h.Pool)
	for _, id := range []string{"", "nobody", "a/b?c"} {
		if err := c.Stop(t.Context(), id, ""); err != nil {
			t.Errorf("stop %q: %v", id, err)
		}
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

func TestADisabledPoolRunsNothing(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Disabled = true })
	c := serve(t, h.Pool)
	if _, err := c.Run(t.Context(), fleet.Task{ClientToken: "a"}); !errors.Is(err, fleet.ErrDisabled) {
		t.Errorf("error = %v", err)
	}
	if list, err := c.Tasks(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("tasks = %+v, %v", list, err)
	}
}
