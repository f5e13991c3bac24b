package local

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
)

func TestAClientCallsOverAWebSocket(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), localtest.Patience)
	defer cancel()
	m := started(t, nil)
	at := strings.Replace(m.public.address(1), "http", "ws", 1)
	if _, res, err := websocket.Dial(ctx, at+"/local?server=none", nil); err == nil || res.StatusCode != http.StatusNotFound { //nolint:bodyclose // the library closes it
		t.Errorf("a server that is not there: %v", err)
	}
	conn, _, err := websocket.Dial(ctx, at+"/local?server=counter", nil) //nolint:bodyclose // the library closes it
	commontest.OK(t, err)
	defer func() { _ = conn.CloseNow() }()
	for _, step := range []struct{ says, hears string }{
		{"hello", "-32700"},
		{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`, `"protocolVersion":"2025-11-25"`},
		{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""},
		{`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"add","arguments":{"by":2}}}`, `"text":"2"`},
	} {
		commontest.OK(t, conn.Write(ctx, websocket.MessageText, []byte(step.says)))
		if step.hears != "" {
			_, heard, err := conn.Read(ctx)
			commontest.OK(t, err)
			commontest.Contains(t, "the client hears", step.hears, string(heard))
		}
	}
}

func TestRunnersAreAdmittedByTheirPassAndAnsweredByFrames(t *testing.T) {
	in, _ := started(t, nil).functions.(*inprocess)
	r, own := &runnerRoutes{in}, in.use().sealer
	other, err := relayserver.NewSealer(bytes.Repeat([]byte{1}, 32))
	commontest.OK(t, err)
	for pass, want := range map[string]int{
		"": http.StatusUnauthorized, "x": http.StatusUnauthorized, other.Pass("b"): http.StatusUnauthorized, own.Pass("b"): http.StatusOK,
	} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/relay", nil)
		req.Header.Set("Dormouse-Pass", pass)
		commontest.EqualIn(t, fmt.Sprintf("pass %.8q", pass), want, r.Connect(t.Context(), sockets.Conn{}, req).Status)
	}
	for _, none := range []string{"", "hello", `{"message":"Internal server error"}`} {
		commontest.EqualIn(t, "the answer to "+none, "", string(r.Message(t.Context(), sockets.Conn{ID: "c"}, []byte(none))))
	}
	stranger := frametest.Encode(frametest.Frame{V: frame.Version, Type: frame.TypeHello, Box: "b", Gen: 1, Runner: "r", Link: 1})
	got, err := frametest.Decode(r.Message(t.Context(), sockets.Conn{ID: "c"}, stranger))
	if err != nil || got.Type != frame.TypeFenced {
		t.Errorf("the runner of a box that nobody has is answered with %+v, %v", got, err)
	}
}
