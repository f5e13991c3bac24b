package emulator

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
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

func TestWhatEventBridgeWouldRefuseIsRefused(t *testing.T) {
	kept, err := scheduler.New(scheduler.Config{Folder: t.TempDir()})
	commontest.OK(t, err)
	api := &schedules{API: kept, tokens: map[string]string{}}
	good := `{"ClientToken":"t","GroupName":"dormouse","ScheduleExpression":"at(2999-01-02T03:04:05)","ScheduleExpressionTimezone":"UTC",
		"FlexibleTimeWindow":{"Mode":"OFF"},"ActionAfterCompletion":"DELETE","Target":{"Arn":"` + aws.FunctionARN("http") + `","RoleArn":"r","Input":"{}"}}`
	for name, c := range map[string]struct {
		method, path, old, new, kind string
		status                       int
	}{
		"all is right":        {path: "/schedules/a-b_c.1", status: 200},
		"the same again":      {path: "/schedules/a-b_c.1", status: 200},
		"another of the name": {path: "/schedules/a-b_c.1", old: `"t"`, new: `"u"`, status: 409, kind: "ConflictException"},
		"a name too long":     {path: "/schedules/" + strings.Repeat("n", 65), status: 400, kind: "ValidationException"},
		"a name with a space": {path: "/schedules/a%20b", status: 400, kind: "ValidationException"},
		"a zone in the time":  {path: "/schedules/z", old: ":05)", new: ":05Z)", status: 400, kind: "ValidationException"},
		"no time zone":        {path: "/schedules/z", old: `"UTC"`, new: `""`, status: 400, kind: "ValidationException"},
		"the past":            {path: "/schedules/z", old: "2999", new: "1999", status: 400, kind: "ValidationException"},
		"another group":       {path: "/schedules/z", old: `"dormouse"`, new: `"other"`, status: 404, kind: "ResourceNotFoundException"},
		"another function":    {path: "/schedules/z", old: ":http", new: ":other", status: 400, kind: "ValidationException"},
		"no role":             {path: "/schedules/z", old: `"r"`, new: `""`, status: 400, kind: "ValidationException"},
		"input that is none":  {path: "/schedules/z", old: `"{}"`, new: `"{"`, status: 400, kind: "ValidationException"},
		"a long token":        {path: "/schedules/z", old: `"t"`, new: `"` + strings.Repeat("t", 65) + `"`, status: 400, kind: "ValidationException"},
		"a window":            {path: "/schedules/z", old: "OFF", new: "FLEXIBLE", status: 400, kind: "ValidationException"},
		"deleting nothing":    {method: "DELETE", path: "/schedules/none?groupName=dormouse", status: 404, kind: "ResourceNotFoundException"},
		"no such operation":   {method: "PUT", path: "/schedules/z", status: 404, kind: "UnknownOperationException"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.method == "" {
				c.method = http.MethodPost
				// The first request leaves a schedule that can conflict with another.
				api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/schedules/a-b_c.1", strings.NewReader(good)))
			}
			w := httptest.NewRecorder()
			api.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(replaced(good, c.old, c.new))))
			if got := w.Header().Get("X-Amzn-ErrorType"); w.Code != c.status || got != c.kind {
				t.Errorf("status %d, %q, want %d, %q: %s", w.Code, got, c.status, c.kind, w.Body)
			}
		})
	}
}

// replaced returns text with the first old replaced by with. An empty old changes nothing.
func replaced(text, old, with string) string {
	if old == "" {
		return text
	}
	return strings.Replace(text, old, with, 1)
}
