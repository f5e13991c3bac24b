package process

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// serve serves the pool below a path and returns a client of it.
func serve(t *testing.T, p *Pool) *Client {
	t.Helper()
	server := httptest.NewServer(http.StripPrefix("/secret/fleet", p.Handler()))
	t.Cleanup(server.Close)
	c := NewClient(server.URL+"/secret/fleet", time.Time{})
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// The contract has the errors of a full pool and of tasks that cannot be run.
func TestErrorsKeepTheirKindThroughTheClient(t *testing.T) {
	h := newHarness(t, nil)
	c := serve(t, h.Pool)
	huge := fleet.Task{ClientToken: "a", Box: strings.Repeat("x", maxTaskBytes)}
	if _, err := c.Run(t.Context(), huge); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("huge: error = %v", err)
	}
	commontest.OK(t, h.Close(t.Context()))
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
