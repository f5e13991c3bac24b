package front_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/events"

	"github.com/dormouse-mcp/dormouse/shared/front/lambdafront"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// told is a meter that remembers the accounts it was given.
type told struct{ all []session.Account }

func (m *told) Spent(a session.Account) []any {
	m.all = append(m.all, a)
	return []any{"spent", len(m.all)}
}

// lastLine returns the last line of a log.
func lastLine(t *testing.T, logged *bytes.Buffer) (line map[string]any) {
	t.Helper()
	all := strings.Split(strings.TrimSpace(logged.String()), "\n")
	if err := json.Unmarshal([]byte(all[len(all)-1]), &line); err != nil {
		t.Fatal(err)
	}
	return line
}

func TestARequestIsCountedWhenItHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &told{}
		w.opts.Meter = m
		body := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/known/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		a := w.do(r)
		if a.status != http.StatusOK || len(m.all) != 1 {
			t.Fatalf("status %d, %d requests counted", a.status, len(m.all))
		}
		got := m.all[0]
		if got.Over != session.OverREST || got.Tenant != "tenant" || got.Server != "known" || got.Session == "" ||
			got.In != len(body) || got.Out != len(a.body) || got.Poll || got.Code != "" {
			t.Errorf("a request with %d bytes and an answer of %d is counted as %+v", len(body), len(a.body), got)
		}
		if line := lastLine(t, w.logged); line["spent"] != 1.0 {
			t.Errorf("its line is %v", line)
		}
	})
}

func TestWhoIsNotLetInIsCountedForNobody(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := &told{}
		w.opts.Meter = m
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/quiet/mcp", nil)
		r.Header.Set("Authorization", "Bearer nobody")
		r.Header.Set("Mcp-Session-Id", "stolen")
		w.do(r)
		if len(m.all) != 1 || m.all[0].Tenant != "" || m.all[0].Server != "" || m.all[0].Session != "" || m.all[0].Code != session.Unauthenticated {
			t.Errorf("it is counted as %+v", m.all)
		}
	})
}

func TestTheGatewaysIDNamesARequestInItsLine(t *testing.T) {
	w := newWorld(t)
	event := events.APIGatewayProxyRequest{HTTPMethod: http.MethodPost, Path: "/quiet/mcp", Body: "{"}
	event.Headers = map[string]string{"Host": "localhost", "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
	event.RequestContext.RequestID = "request-1"
	res, err := lambdafront.HTTP(w.handler())(t.Context(), event)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	if line := lastLine(t, w.logged); line["trace"] != "request-1" {
		t.Errorf("its line is %v", line)
	}
}
