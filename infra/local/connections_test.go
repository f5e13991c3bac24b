package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi"
	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi/types"
	"github.com/coder/websocket"
)

// wsSDK is AWS's own client of the @connections API.
type wsSDK struct {
	t   *testing.T
	api *apigatewaymanagementapi.Client
}

func newWSSDK(t *testing.T, stage string, dial func(context.Context, string, string) (net.Conn, error)) wsSDK {
	transport := &http.Transport{DialContext: dial}
	t.Cleanup(transport.CloseIdleConnections)
	return wsSDK{t, apigatewaymanagementapi.New(apigatewaymanagementapi.Options{
		BaseEndpoint: aws.String("http://local/" + stage), Region: "local", RetryMaxAttempts: 1,
		HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})}
}

// sdk returns a client of the bench's own network.
func (b *wsBench) sdk() wsSDK { return newWSSDK(b.t, b.cfg.Stage, b.connections.dial) }

func (s wsSDK) post(id, data string) error {
	_, err := s.api.PostToConnection(s.t.Context(), &apigatewaymanagementapi.PostToConnectionInput{ConnectionId: &id, Data: []byte(data)})
	return err
}

func (s wsSDK) delete(id string) error {
	_, err := s.api.DeleteConnection(s.t.Context(), &apigatewaymanagementapi.DeleteConnectionInput{ConnectionId: &id})
	return err
}

func (s wsSDK) get(id string) (*apigatewaymanagementapi.GetConnectionOutput, error) {
	return s.api.GetConnection(s.t.Context(), &apigatewaymanagementapi.GetConnectionInput{ConnectionId: &id})
}

// isError says whether err is of the SDK's error type T.
func isError[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

func TestTheSDKPostsOverAUnixSocket(t *testing.T) {
	b := newWSBench(t, echo, nil)
	path := filepath.Join(t.TempDir(), "gateway.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: b.Connections()}
	go func() { _ = srv.Serve(l) }()
	defer func() { _ = srv.Close() }()
	var d net.Dialer
	sdk := newWSSDK(t, "prod", func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", path) })

	conn, id := b.client()
	if err := sdk.post(id, "hello"); err != nil {
		t.Fatal(err)
	}
	if got := b.hear(conn); got != "hello" {
		t.Errorf("heard %q", got)
	}
}

func TestPostsArriveInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		conn, id := b.client()
		sdk := b.sdk()
		for i := range 50 {
			if err := sdk.post(id, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 50 {
			if got := b.hear(conn); got != fmt.Sprint(i) {
				t.Fatalf("message %d is %q", i, got)
			}
		}
	})
}

func TestAPostToAClosedConnectionIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		conn, id := b.client()
		_ = conn.Close(websocket.StatusNormalClosure, "")
		synctest.Wait()
		sdk := b.sdk()
		_, getErr := sdk.get(id)
		for name, err := range map[string]error{
			"post": sdk.post(id, "x"), "get": getErr, "delete": sdk.delete(id), "never was": sdk.post(newGatewayID(), "x"),
		} {
			if !isError[*types.GoneException](err) {
				t.Errorf("%s: error = %v", name, err)
			}
		}
	})
}

func TestAPostWithinConnectIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *wsBench
		var within error
		b = newWSBench(t, func(e wsEvent) (wsAnswer, error) {
			if e.RequestContext.EventType == "CONNECT" {
				within = b.sdk().post(e.RequestContext.ConnectionID, "too soon")
			}
			return wsAnswer{StatusCode: 200}, nil
		}, nil)
		b.client()
		if !isError[*types.GoneException](within) {
			t.Errorf("error = %v", within)
		}
	})
}

func TestAPostOf128KBPassesAndOneByteMoreDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		conn, id := b.client()
		sdk := b.sdk()
		if err := sdk.post(id, strings.Repeat("x", 131_073)); !isError[*types.PayloadTooLargeException](err) {
			t.Errorf("131,073 bytes: error = %v", err)
		}
		if err := sdk.post(id, strings.Repeat("x", 131_072)); err != nil {
			t.Fatalf("131,072 bytes: %v", err)
		}
		if got := b.hear(conn); len(got) != 131_072 {
			t.Errorf("heard %d bytes", len(got))
		}
	})
}

func TestAClientThatDoesNotReadFillsItsBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, func(c *WebSocketConfig) { c.Limits.SendBuffer = 200_000 })
		conn, id := b.client()
		sdk := b.sdk()
		data := strings.Repeat("x", 100_000)
		for range 2 {
			if err := sdk.post(id, data); err != nil {
				t.Fatal(err)
			}
		}
		if err := sdk.post(id, data); !isError[*types.LimitExceededException](err) {
			t.Errorf("error = %v", err)
		}
		b.hear(conn)
		b.hear(conn)
		synctest.Wait()
		if err := sdk.post(id, data); err != nil {
			t.Errorf("after the client has read: %v", err)
		}
	})
}

func TestDeleteClosesTheConnectionAfterWhatWasPosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		conn, id := b.client()
		sdk := b.sdk()
		if err := sdk.post(id, "last words"); err != nil {
			t.Fatal(err)
		}
		if err := sdk.delete(id); err != nil {
			t.Fatal(err)
		}
		if err := sdk.post(id, "too late"); !isError[*types.GoneException](err) {
			t.Errorf("post after delete: %v", err)
		}
		if got := b.hear(conn); got != "last words" {
			t.Errorf("heard %q", got)
		}
		if end := b.closeOf(conn); end.Code != websocket.StatusNormalClosure {
			t.Errorf("close = %+v", end)
		}
		if code, reason := b.disconnect(); code != 1000 || reason != "Connection Closed Normally" {
			t.Errorf("$disconnect with %d %q", code, reason)
		}
	})
}

func TestAClientThatDoesNotReadCannotHoldUpTheClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		_, id := b.client()
		sdk := b.sdk()
		if err := sdk.post(id, "stuck"); err != nil {
			t.Fatal(err)
		}
		if err := sdk.delete(id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(flushTime) // virtual
		if code, _ := b.disconnect(); code != 1000 {
			t.Errorf("$disconnect with %d", code)
		}
	})
}

func TestGetTellsWhenAndWho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWSBench(t, echo, nil)
		start := time.Now()
		conn, id := b.client()
		time.Sleep(time.Minute) // virtual
		b.say(conn, "x")
		b.hear(conn)
		got, err := b.sdk().get(id)
		if err != nil {
			t.Fatal(err)
		}
		if !got.ConnectedAt.Equal(start) || !got.LastActiveAt.Equal(start.Add(time.Minute)) || *got.Identity.SourceIp != "127.0.0.1" {
			t.Errorf("connected %v, active %v, identity %+v", got.ConnectedAt, got.LastActiveAt, got.Identity)
		}
	})
}

func TestConnectionsRefusesWhatAWSRefuses(t *testing.T) {
	api, err := NewWebSocketAPI(WebSocketConfig{Name: "mcp", Stage: "prod", Function: "f", Invoker: &wsFunction{handle: echo}})
	if err != nil {
		t.Fatal(err)
	}
	const signature = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c"
	id := newGatewayID()
	tests := map[string]struct {
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
	}
	for name, test := range tests {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://local"+test.path, strings.NewReader("x"))
		r.Header.Set("Authorization", test.auth)
		r.Header.Set("X-Amz-Date", "20000101T000000Z")
		w := httptest.NewRecorder()
		api.Connections().ServeHTTP(w, r)
		if w.Code != test.status || w.Header().Get("X-Amzn-ErrorType") != test.kind {
			t.Errorf("%s: %d %s, want %d %s", name, w.Code, w.Header().Get("X-Amzn-ErrorType"), test.status, test.kind)
		}
	}
}
