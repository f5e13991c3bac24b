package pooltest

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet/process"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestTheClientSaysWhatThePoolSays(t *testing.T) {
	pool := process.NewPool(process.Config{
		MaxTasks: 1, Command: "/does/not/exist", Logger: slog.New(slog.DiscardHandler),
		Prepare: func(_ context.Context, t fleet.Task) (fleet.Task, error) {
			t.Place = process.Inside
			return t, nil
		},
		Inside: func(ctx context.Context, _ <-chan struct{}, _ map[string]string, _ func(string)) int {
			<-ctx.Done()
			return 0
		},
	})
	server := httptest.NewServer(Handler(pool))
	defer server.Close()
	c := NewClient(server.URL, time.Time{})
	id, err := c.Run(t.Context(), fleet.Task{ClientToken: "a", Box: "tenant:ä@example.com/echo"})
	commontest.OK(t, err)
	list, err := c.Tasks(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Box != "tenant:ä@example.com/echo" {
		t.Errorf("tasks: %+v, %v", list, err)
	}
	for what, want := range map[string]error{"b": fleet.ErrCapacity, "": fleet.ErrInvalid, strings.Repeat("x", 1<<20): fleet.ErrInvalid} {
		if _, err := c.Run(t.Context(), fleet.Task{ClientToken: what}); !errors.Is(err, want) {
			t.Errorf("%.20q: %v, want %v", what, err, want)
		}
	}
	commontest.OK(t, c.Stop(t.Context(), id, "idle & says ä"))
	commontest.OK(t, c.Stop(t.Context(), "a/b?c", "late"))
	commontest.OK(t, pool.Close(t.Context()))
	if list, err := c.Tasks(t.Context()); err != nil || len(list) != 1 || list[0].State != fleet.Stopped || list[0].Reason != "idle & says ä" {
		t.Errorf("tasks: %+v, %v", list, err)
	}
	server.Close()
	_, err = c.Tasks(t.Context())
	if !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a pool that is not there: %v", err)
	}
}
