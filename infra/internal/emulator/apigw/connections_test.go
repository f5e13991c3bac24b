package apigw

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi/types"
	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
)

// taker takes every connection, and remembers the ids.
type taker struct{ ids []string }

func (k *taker) Connect(_ context.Context, c sockets.Conn, _ *http.Request) sockets.Reply {
	k.ids = append(k.ids, c.ID)
	return sockets.Reply{Status: http.StatusOK}
}
func (*taker) Message(context.Context, sockets.Conn, []byte) []byte  { return nil }
func (*taker) Disconnect(context.Context, sockets.Conn, int, string) {}

// connected opens a connection to an API with this stage.
func connected(t *testing.T, stage string) (api *sockets.API, conn *localtest.WebSocket, id string) {
	t.Helper()
	k := &taker{}
	api = sockets.New(sockets.Config{Name: "mcp", Stage: stage, Routes: k, Limits: sockets.AWS()})
	conn = localtest.WebSockets{T: t, API: localtest.Serve(t, api), Stage: stage}.Open()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel() // cuts connections that a test left open
		_ = api.Close(ctx)
	})
	return api, conn, k.ids[0]
}

func TestAWSsClientPostsToConnectionsOfTwoAPIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, conn, id := connected(t, "one")
		two, _, _ := connected(t, "two")
		both := localtest.Serve(t, Connections{"one": one, "two": two})
		of := func(stage string) localtest.Connections {
			return localtest.NewConnections(t, "http://local/"+stage, both.Dial)
		}
		if err := of("one").Post(id, strings.Repeat("x", 131_073)); !localtest.IsError[*types.PayloadTooLargeException](err) {
			t.Errorf("131,073 bytes: error = %v", err)
		}
		if err := of("one").Post(id, "hello"); err != nil {
			t.Fatal(err)
		}
		if got := conn.Hear(); got != "hello" {
			t.Errorf("heard %q", got)
		}
		if err := of("two").Post(id, "x"); !localtest.IsError[*types.GoneException](err) {
			t.Errorf("by the other's stage: error = %v, want 410", err)
		}
		if err := of("three").Post(id, "x"); !localtest.IsError[*types.ForbiddenException](err) {
			t.Errorf("by nobody's stage: error = %v, want 403", err)
		}
		if err := of("one").Delete(id); err != nil {
			t.Fatal(err)
		}
		if end := conn.End(); end.Code != websocket.StatusNormalClosure {
			t.Errorf("close = %+v", end)
		}
	})
}

func TestConnectionsRefusesWhatAWSRefuses(t *testing.T) {
	api := sockets.New(sockets.Config{Name: "mcp", Stage: "prod", Routes: &taker{}, Limits: sockets.AWS()})
	const signature = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c"
	id := awsapi.NewID()
	for name, test := range map[string]struct {
		path, auth string
		status     int
		kind       string
	}{
		"not signed":      {"/prod/@connections/" + id, "", 403, "MissingAuthenticationTokenException"},
		"a bearer token":  {"/prod/@connections/" + id, "Bearer x", 403, "MissingAuthenticationTokenException"},
		"no such id":      {"/prod/@connections/nobody", signature, 400, "BadRequestException"},
		"wrong stage":     {"/test/@connections/" + id, signature, 403, "ForbiddenException"},
		"escaped":         {"/prod/%40connections/" + strings.ReplaceAll(id, "=", "%3D"), signature, 410, "GoneException"},
		"not escaped":     {"/prod/@connections/" + id, signature, 410, "GoneException"},
		"other resources": {"/prod/connections", signature, 403, "ForbiddenException"},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://local"+test.path, strings.NewReader("x"))
			r.Header.Set("Authorization", test.auth)
			r.Header.Set("X-Amz-Date", "20000101T000000Z")
			w := httptest.NewRecorder()
			Connections{"prod": api}.ServeHTTP(w, r)
			if w.Code != test.status || w.Header().Get("X-Amzn-ErrorType") != test.kind {
				t.Errorf("%d %s, want %d %s", w.Code, w.Header().Get("X-Amzn-ErrorType"), test.status, test.kind)
			}
		})
	}
}
