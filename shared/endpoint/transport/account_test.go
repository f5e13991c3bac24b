package transport_test

import (
	"io"
	"log/slog"
	"net/http"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/endpoint/apigateway"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// told is a meter that remembers the accounts it was given.
type told struct{ all []storage.Account }

func (m *told) Spent(a storage.Account) storage.Spent {
	m.all = append(m.all, a)
	return storage.Spent{Metrics: []slog.Attr{slog.Int("spent", len(m.all))}}
}

func TestARequestIsCountedWhenItHasEnded(t *testing.T) {
	document := func(*http.Request, string, []sessions.Caller) (any, error) { return "a document", nil }
	for name, c := range map[string]struct {
		by   func(w *world) http.Handler
		r    *http.Request
		want storage.Account
	}{
		"initialize": {func(w *world) http.Handler { return w.handler() }, request("POST", "/known/mcp", initialize), storage.Account{Server: "known", In: len(initialize)}},
		"a listing":  {func(w *world) http.Handler { return w.handler().Listing(document) }, request("GET", "/registry/v0.1/servers", ""), storage.Account{Poll: true}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				m := &told{}
				named(w).opts.Meter = m
				rec := newRecorder(t.Context())
				rec.serve(c.by(w), c.r)
				a := rec.read()
				if a.status != http.StatusOK || len(m.all) != 1 {
					t.Fatalf("status %d, %d requests counted", a.status, len(m.all))
				}
				got := m.all[0]
				if got.Over != storage.OverREST || got.Tenant != "tenant" || got.Server != c.want.Server || (got.Session != "") != (c.want.Server != "") ||
					got.In != c.want.In || got.Out != len(a.body) || got.Poll != c.want.Poll || got.Code != "" {
					t.Errorf("a request with an answer of %d bytes is counted as %+v; want %+v", len(a.body), got, c.want)
				}
				if line := w.lastLine(); line.Spent != 1 {
					t.Errorf("its line is %+v", line)
				}
			})
		})
	}
}

func TestWhoIsNotLetInIsCountedForNobody(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &told{}
		w.opts.Meter = m
		w.do(request("GET", "/quiet/mcp", "", "Authorization", "Bearer nobody", "Mcp-Session-Id", "stolen"))
		if len(m.all) != 1 || m.all[0].Tenant != "" || m.all[0].Server != "" || m.all[0].Session != "" || m.all[0].Code != storage.Unauthenticated {
			t.Errorf("it is counted as %+v", m.all)
		}
	})
}

func TestTheGatewaysIDNamesARequestInItsLine(t *testing.T) {
	w := newWorld(t)
	event := events.APIGatewayProxyRequest{HTTPMethod: http.MethodPost, Path: "/quiet/mcp", Body: "{"}
	event.Headers = map[string]string{"Host": "localhost", "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
	event.RequestContext.RequestID = "request-1"
	res, err := apigateway.HTTP(w.handler(), slog.New(slog.DiscardHandler))(t.Context(), event)
	commontest.OK(t, err)
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	if line := w.lastLine(); line.Trace != "request-1" {
		t.Errorf("its line is %+v", line)
	}
}
