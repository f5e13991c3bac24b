package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/functions/wiring/endpoints"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
	"github.com/dormouse-mcp/dormouse/infra/local/sockets"
	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/backend/native/nativetest"
	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/store/meter"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

type noFleet struct{ fleet.Fleet }

// wired builds the parts that the handlers of a machine share.
func wired(t *testing.T, m *machine) *wiring.Function {
	t.Helper()
	servers, _, err := serversfile.Parse([]byte(`{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}},"off":{"disabled":true,"command":"a"}}}`), "servers.json", nil)
	commontest.OK(t, err)
	f, err := wiring.New(wiring.Settings{Servers: servers, Secret: make([]byte, 32), Open: true, Hosts: []string{"gateway.test"}}, wiring.Parts{
		Store: storagetest.NewMemory(), Fleet: noFleet{}, Runners: m.relay, Clients: sockets.Clients{API: m.socket},
		Meter: meter.New(meter.Options{}), Log: m.log,
	})
	commontest.OK(t, err)
	return f
}

// clientsOf serves WebSocket clients.
func clientsOf(t *testing.T) localtest.WebSockets {
	t.Helper()
	m := unstarted(t, Config{})
	in := &inprocess{m: m}
	in.ctx, in.cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	m.openSockets(&runnerRoutes{in}, &clientRoutes{in}, sockets.Home(), socketsOnly)
	socket, err := endpoints.NewSocket(wired(t, m), nativetest.Servers(), endpoints.Alarms{}, pushLater, nil)
	commontest.OK(t, err)
	in.made.Store(&handlers{socket: socket})
	t.Cleanup(func() {
		in.cancel()
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel()
		_ = m.socket.Close(ctx)
	})
	return localtest.WebSockets{T: t, API: localtest.Serve(t, m.socket), Stage: socketStage}
}

// talk is a connection and the client's messages over it.
type talk struct {
	query     string // SESSION and EVENT stand for the ids that the last request over an earlier connection got
	protocols []string
	says      []string
}

const (
	hello  = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	thanks = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	add    = `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"add","arguments":{"by":2}}}`
)

var (
	anID     = regexp.MustCompile(`"(sessionId|eventId)":"[^"]*"`)
	accepted = regexp.MustCompile(`"sessionId":"([^"]*)","eventId":"([^"]*)","requestId"`)
)

// hold plays a talk. It returns what the client got: the answer to its upgrade, and the
// messages after each of its own.
func (k talk) hold(w localtest.WebSockets, ids *strings.Replacer) (saw []string, _ *strings.Replacer) {
	conn, err := w.Dial("/"+w.Stage+ids.Replace(k.query), websocket.DialOptions{Subprotocols: k.protocols})
	var refused localtest.Refusal
	if errors.As(err, &refused) {
		return []string{fmt.Sprint("refused with ", refused.Status)}, ids
	}
	commontest.OK(w.T, err)
	var mu sync.Mutex
	var heard []string
	go func() {
		for {
			_, data, err := conn.Read(w.T.Context())
			text := string(data)
			if err != nil {
				text = fmt.Sprint("closed with ", websocket.CloseStatus(err))
			}
			mu.Lock()
			heard = append(heard, text)
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	saw = append(saw, "connected as "+conn.Subprotocol())
	for _, says := range append([]string{""}, k.says...) {
		if says != "" {
			kind := websocket.MessageText
			if says == "binary" {
				kind = websocket.MessageBinary
			}
			_ = conn.Write(w.T.Context(), kind, []byte(says))
		}
		time.Sleep(10 * time.Second) // virtual
		mu.Lock()
		for _, text := range heard {
			if found := accepted.FindStringSubmatch(text); found != nil {
				ids = strings.NewReplacer("SESSION", found[1], "EVENT", url.QueryEscape(found[2]))
			}
			saw = append(saw, anID.ReplaceAllString(text, `"$1":"*"`))
		}
		heard = nil
		mu.Unlock()
		saw = append(saw, "----")
	}
	_ = conn.CloseNow()
	synctest.Wait()
	return saw, ids
}

func TestWebSocketClientsOfAMachine(t *testing.T) {
	talks := map[string][]talk{
		"unknown server": {{query: "?server=none"}},
		"subprotocol":    {{query: "?server=counter", protocols: []string{"other", "mcp"}}},
		"no JSON":        {{query: "?server=counter", says: []string{"hello", "[]", `{"jsonrpc":"1.0"}`, `{"a":"<&>\u2028"}`}}},
		"binary":         {{query: "?server=counter", says: []string{"binary"}}},
		"a session that is taken up": {
			{query: "?server=counter&event-ids=1", says: []string{hello, thanks, add}},
			{query: "?server=counter&event-ids=1&session=SESSION", says: []string{add}},
			{query: "?server=counter&event-ids=1&session=SESSION&last-event-id=EVENT", says: []string{add}},
			{query: "?server=counter&session=SESSION&last-event-id=none"},
		},
	}
	wants := map[string]string{
		"unknown server": "with 404", "subprotocol": "as mcp", "no JSON": "-32700", "binary": "closed with StatusUnsupportedData",
		// The third connection gets the messages that had come over the second.
		"a session that is taken up": `connected as  {"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"4"}]}}`,
	}
	for name, all := range talks {
		t.Run(name, func(t *testing.T) {
			var saw []string
			synctest.Test(t, func(t *testing.T) {
				w, ids := clientsOf(t), strings.NewReplacer()
				for _, k := range all {
					var got []string
					got, ids = k.hold(w, ids)
					saw = append(saw, got...)
				}
				commontest.Contains(t, "another path", "WebSockets only, at /local?server=NAME", w.Refused("/echo/mcp").Body)
			})
			if got := strings.Join(saw, " "); !strings.Contains(got, wants[name]) || wants[name] == "" {
				t.Errorf("clients saw %s, want %s in it", got, wants[name])
			}
		})
	}
}

func TestRunnersAreAdmittedByTheirPassAndAnsweredByFrames(t *testing.T) {
	m := unstarted(t, Config{})
	in := &inprocess{m: m}
	r := &runnerRoutes{in}
	m.openSockets(r, &clientRoutes{in}, sockets.Home(), socketsOnly)
	f := wired(t, m)
	in.made.Store(&handlers{sealer: f.Relay.Sealer, relay: relayserver.NewHandler(f.Relay)})
	other, err := relayserver.NewSealer(bytes.Repeat([]byte{1}, 32))
	commontest.OK(t, err)
	for pass, want := range map[string]int{
		"": http.StatusUnauthorized, "x": http.StatusUnauthorized, other.Pass("b"): http.StatusUnauthorized, f.Relay.Sealer.Pass("b"): http.StatusOK,
	} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/relay", nil)
		req.Header.Set("Dormouse-Pass", pass)
		if got := r.Connect(t.Context(), sockets.Conn{}, req); got.Status != want {
			t.Errorf("pass %.8q: %d, want %d", pass, got.Status, want)
		}
	}
	for _, none := range []string{"", "hello", `{"message":"Internal server error"}`} {
		if got := r.Message(t.Context(), sockets.Conn{ID: "c"}, []byte(none)); len(got) != 0 {
			t.Errorf("%q is answered with %s", none, got)
		}
	}
	stranger := frametest.Encode(frametest.Frame{V: frame.Version, Type: frame.TypeHello, Box: "b", Gen: 1, Runner: "r", Link: 1})
	got, err := frametest.Decode(r.Message(t.Context(), sockets.Conn{ID: "c"}, stranger))
	if err != nil || got.Type != frame.TypeFenced {
		t.Errorf("the runner of a box that nobody has is answered with %+v, %v", got, err)
	}
}
