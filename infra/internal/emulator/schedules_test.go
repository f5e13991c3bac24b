package emulator

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/aws"
	"github.com/dormouse-mcp/dormouse/infra/local/scheduler"
	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/eventbridge"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// direct is an HTTP transport that calls a handler.
type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.h.ServeHTTP(w, r)
	return w.Result(), nil
}

func TestTheClientOfEventBridgeSetsAndCancelsAlarms(t *testing.T) {
	kept, err := scheduler.New(scheduler.Config{Folder: t.TempDir()})
	commontest.OK(t, err)
	client := eventbridge.New(eventbridge.Config{
		Service: awscall.Service{Endpoint: "http://local", Client: &http.Client{Transport: direct{&schedules{API: kept, tokens: map[string]string{}}}}},
		Group:   scheduleGroup, Target: aws.FunctionARN("http"), Role: "arn:aws:iam::000000000000:role/local",
	})
	a := native.Alarm{Session: "s1", Name: "n", At: time.Now().Add(time.Hour)}
	for _, change := range []struct {
		do   func(context.Context, native.Alarm) error
		left int
	}{{client.Schedule, 1}, {client.Schedule, 1}, {client.Cancel, 0}, {client.Cancel, 0}} { // repeats are accepted
		if err := change.do(t.Context(), a); err != nil || kept.Len() != change.left {
			t.Fatalf("%d schedules, want %d, and error %v", kept.Len(), change.left, err)
		}
	}
}
