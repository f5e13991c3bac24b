package observe_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// meter counts one request for each account.
type meter struct{}

func (meter) Spent(storage.Account) storage.Spent {
	return storage.Spent{Units: storage.Units{Requests: 1}, Metrics: []slog.Attr{slog.Int("calls", 1)}}
}

func TestLineOfEachKind(t *testing.T) {
	of := storage.Account{Server: "mine", Tenant: "acme", Principal: "ada", Session: "s", Took: 5 * time.Millisecond}
	frame := of
	frame.Principal, frame.Code = "", storage.Invalid
	const spent = `"tenant":"acme","units":{"requests":1},"calls":1}`
	for name, tt := range map[string]struct {
		event observe.Event
		want  string
	}{
		"a call": {
			observe.Event{Kind: observe.Request, Account: of, HTTPMethod: "POST", Status: 200, RPCMethod: "tools/call", RPCID: "number", Caller: &observe.Caller{Key: "k", Address: "a"}, Tool: "look", Outcome: observe.Failed, Why: "no", Trace: "t"},
			`{"level":"INFO","msg":"request","http_method":"POST","server":"mine","status":200,"rpc_method":"tools/call","rpc_id":"number","session_id":"s","duration_ms":5,"principal":"ada","caller":{"key":"k","address":"a"},"tool":"look","outcome":"failed","why":"no","trace":"t",` + spent,
		},
		"a request of a stranger": {
			observe.Event{Kind: observe.Request, Level: slog.LevelWarn, Account: storage.Account{Code: storage.Unauthenticated}, HTTPMethod: "GET", Status: 401, RPCID: "none", Refused: true, Refusal: "unauthenticated", Why: "no key", Caller: &observe.Caller{Server: "mine"}},
			`{"level":"WARN","msg":"request","http_method":"GET","server":"","status":401,"rpc_method":"","rpc_id":"none","session_id":"","duration_ms":0,"code":"unauthenticated","refusal":"unauthenticated","caller":{"server":"mine","tenant":"","principal":"","key":"","address":""},"refused":true,"why":"no key","tenant":"","units":{"requests":1},"calls":1}`,
		},
		"a frame": {
			observe.Event{Kind: observe.Frame, Level: slog.LevelWarn, Account: frame, Type: "events", Conn: "c", Box: "acme/mine", Error: "odd", Trace: "t", Ended: []observe.Ended{{Stream: "1"}}, Traces: []string{"u"}},
			`{"level":"WARN","msg":"frame","type":"events","server":"mine","session_id":"s","connection_id":"c","box":"acme/mine","duration_ms":5,"code":"invalid","error":"odd","trace":"t","ended":[{"stream":"1"}],"traces":["u"],` + spent,
		},
		"a message of a WebSocket": {
			observe.Event{Kind: observe.Socket, Account: of, What: "message", Conn: "c", RPCID: "none", Client: "zed"},
			`{"level":"INFO","msg":"socket","event":"message","server":"mine","connection_id":"c","rpc_method":"","rpc_id":"none","session_id":"s","duration_ms":5,"principal":"ada","client":"zed",` + spent,
		},
		"a request of an operator": {
			observe.Event{Kind: observe.API, Account: storage.Account{Tenant: "acme", Took: time.Millisecond}, HTTPMethod: "GET", Path: "/api/v1/servers", Status: 403, Refused: true, Refusal: "forbidden", Why: "no", Caller: &observe.Caller{Tenant: "acme", Principal: "eve"}},
			`{"level":"INFO","msg":"api","http_method":"GET","route":"/api/v1/servers","status":403,"duration_ms":1,"principal":"","refusal":"forbidden","caller":{"tenant":"acme","principal":"eve","key":"","address":""},"refused":true,"why":"no",` + spent,
		},
		"another event": {
			observe.Event{Kind: observe.Other, Account: storage.Account{Tenant: "acme"}},
			`{"level":"INFO","msg":"event","duration_ms":0,` + spent,
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantLine(t, tt.want, meter{}, &tt.event)
		})
	}
	wantLine(t, `{"level":"INFO","msg":"work","server":"mine","session_id":"s","tenant":"acme","principal":"ada","client":"zed","trace":"t"}`,
		nil, &observe.Event{Kind: observe.Work, Account: of, Client: "zed", Trace: "t"})
}

func wantLine(t *testing.T, want string, m storage.Meter, e *observe.Event) {
	t.Helper()
	var line strings.Builder
	untimed := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	observe.Log(slog.New(slog.NewJSONHandler(&line, &slog.HandlerOptions{ReplaceAttr: untimed}))).Tell(t.Context(), m, e)
	commontest.SameIn(t, "line", want+"\n", line.String())
}

func TestNobodyHasToObserve(t *testing.T) {
	e := &observe.Event{Kind: observe.API}
	observe.Observer(nil).Tell(t.Context(), meter{}, e)
	observe.Log(nil).Tell(t.Context(), nil, e)
	if e.Spent == nil || e.Spent.Units.Requests != 1 {
		t.Errorf("spent %+v: what nobody observes is charged all the same", e.Spent)
	}
}
