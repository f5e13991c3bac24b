package sockets

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/apigatewaymanagementapi/types"
	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/awsapi"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestTheSDKPostsOverTCP(t *testing.T) {
	b := newBench(t, nil)
	server := httptest.NewServer(Connections{b.API})
	defer server.Close()
	conn, id := b.client()
	if err := localtest.NewConnections(t, server.URL+"/prod", nil).Post(id, "hello"); err != nil {
		t.Fatal(err)
	}
	if got := conn.Hear(); got != "hello" {
		t.Errorf("heard %q", got)
	}
}

func TestPostsArriveInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		sdk := b.sdk()
		for i := range 50 {
			if err := sdk.Post(id, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 50 {
			if got := conn.Hear(); got != fmt.Sprint(i) {
				t.Fatalf("message %d is %q", i, got)
			}
		}
	})
}

func TestAPostToAClosedConnectionIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		_ = conn.Close(websocket.StatusNormalClosure, "")
		synctest.Wait()
		sdk := b.sdk()
		_, getErr := sdk.Get(id)
		for name, err := range map[string]error{
			"post": sdk.Post(id, "x"), "get": getErr, "delete": sdk.Delete(id), "never was": sdk.Post(awsapi.NewID(), "x"),
		} {
			if !localtest.IsError[*types.GoneException](err) {
				t.Errorf("%s: error = %v", name, err)
			}
		}
	})
}

func TestAPostWithinConnectIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		var within error
		b.routes.connect = func(c Conn, _ *http.Request) Reply {
			within = b.sdk().Post(c.ID, "too soon")
			return Reply{Status: http.StatusOK}
		}
		b.client()
		if !localtest.IsError[*types.GoneException](within) {
			t.Errorf("error = %v", within)
		}
	})
}

func TestAPostOf128KBPassesAndOneByteMoreDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		sdk := b.sdk()
		if err := sdk.Post(id, strings.Repeat("x", 131_073)); !localtest.IsError[*types.PayloadTooLargeException](err) {
			t.Errorf("131,073 bytes: error = %v", err)
		}
		if err := sdk.Post(id, strings.Repeat("x", 131_072)); err != nil {
			t.Fatalf("131,072 bytes: %v", err)
		}
		if got := conn.Hear(); len(got) != 131_072 {
			t.Errorf("heard %d bytes", len(got))
		}
	})
}

func TestAClientThatDoesNotReadFillsItsBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.Limits.SendBuffer = 200_000 })
		conn, id := b.client()
		sdk := b.sdk()
		data := strings.Repeat("x", 100_000)
		for range 2 {
			if err := sdk.Post(id, data); err != nil {
				t.Fatal(err)
			}
		}
		if err := sdk.Post(id, data); !localtest.IsError[*types.LimitExceededException](err) {
			t.Errorf("error = %v", err)
		}
		conn.Hear()
		conn.Hear()
		synctest.Wait()
		if err := sdk.Post(id, data); err != nil {
			t.Errorf("after the client has read: %v", err)
		}
	})
}

func TestDeleteClosesTheConnectionAfterWhatWasPosted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		conn, id := b.client()
		sdk := b.sdk()
		if err := sdk.Post(id, "last words"); err != nil {
			t.Fatal(err)
		}
		if err := sdk.Delete(id); err != nil {
			t.Fatal(err)
		}
		if err := sdk.Post(id, "too late"); !localtest.IsError[*types.GoneException](err) {
			t.Errorf("post after delete: %v", err)
		}
		if got := conn.Hear(); got != "last words" {
			t.Errorf("heard %q", got)
		}
		if end := conn.End(); end.Code != websocket.StatusNormalClosure {
			t.Errorf("close = %+v", end)
		}
		if end := b.end(); end.code != 1000 || end.reason != "Connection Closed Normally" {
			t.Errorf("the routes were told %+v", end)
		}
	})
}

func TestAClientThatDoesNotReadCannotHoldUpTheClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		_, id := b.client()
		sdk := b.sdk()
		if err := sdk.Post(id, "stuck"); err != nil {
			t.Fatal(err)
		}
		if err := sdk.Delete(id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(flushTime) // virtual
		if end := b.end(); end.code != 1000 {
			t.Errorf("the routes were told %+v", end)
		}
	})
}

func TestGetTellsWhenAndWho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		start := time.Now()
		conn, id := b.client()
		time.Sleep(time.Minute) // virtual
		conn.Say("x")
		conn.Hear()
		got, err := b.sdk().Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if !got.ConnectedAt.Equal(start) || !got.LastActiveAt.Equal(start.Add(time.Minute)) || *got.Identity.SourceIp != "127.0.0.1" {
			t.Errorf("connected %v, active %v, identity %+v", got.ConnectedAt, got.LastActiveAt, got.Identity)
		}
	})
}

func TestConnectionsRefusesWhatAWSRefuses(t *testing.T) {
	api := New(Config{Name: "mcp", Stage: "prod", Routes: &notes{}, Limits: AWS()})
	const signature = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=c"
	id := awsapi.NewID()
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
		Connections{api}.ServeHTTP(w, r)
		if w.Code != test.status || w.Header().Get("X-Amzn-ErrorType") != test.kind {
			t.Errorf("%s: %d %s, want %d %s", name, w.Code, w.Header().Get("X-Amzn-ErrorType"), test.status, test.kind)
		}
	}
}

func TestConnectionsOfTwoAPIsShareAnEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, other := newBench(t, func(c *Config) { c.Stage = "one" }), newBench(t, func(c *Config) { c.Stage = "two" })
		both := localtest.Serve(t, Connections{b.API, other.API})
		conn, id := b.client()
		if err := localtest.NewConnections(t, "http://local/one", both.Dial).Post(id, "hello"); err != nil {
			t.Fatal(err)
		}
		if got := conn.Hear(); got != "hello" {
			t.Errorf("heard %q", got)
		}
		if err := localtest.NewConnections(t, "http://local/two", both.Dial).Post(id, "x"); !localtest.IsError[*types.GoneException](err) {
			t.Errorf("by the other's stage: error = %v, want 410", err)
		}
		if err := localtest.NewConnections(t, "http://local/three", both.Dial).Post(id, "x"); !localtest.IsError[*types.ForbiddenException](err) {
			t.Errorf("by nobody's stage: error = %v, want 403", err)
		}
	})
}
