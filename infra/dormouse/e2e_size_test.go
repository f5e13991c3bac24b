//go:build e2e

package dormouse_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const (
	maxPosted = 4 << 20 // bytes of the body of a POST
	maxPushed = 131_072 // most bytes of a message to a WebSocket client
)

// filled returns a request to echo a text, of exactly size bytes, and its result.
func filled(id string, size int) (request, result string) {
	bare := (*client)(nil).request(id, "echo", `{"text":""}`)
	text := filling(size-len(bare), 0)
	return (*client)(nil).request(id, "echo", `{"text":"`+text+`"}`), `{"content":[{"type":"text","text":"` + text + `"}]}`
}

// filling returns the inside of a JSON string of size bytes. It has characters of one to
// four bytes in an order that never repeats, and escaped backslashes at regular distances.
// Without backslashes it has other escapes.
func filling(size, backslashes int) string {
	r := rand.New(rand.NewPCG(7, uint64(size)))
	pieces := []string{"a", "Z", " ", "ä", "ß", "é", "€", "漢", "字", "𝄞", "🐭"}
	if backslashes == 0 {
		pieces = append(pieces, `\n`, `\"`, `\\`, `\u00e4`, `\ud834\udd1e`, "\u2028", "<&>")
	}
	var b strings.Builder
	for longest := 12 + 2*backslashes; b.Len()+longest <= size; {
		b.WriteString(pieces[r.IntN(len(pieces))])
		b.WriteString(strings.Repeat(`\\`, backslashes))
	}
	b.WriteString(strings.Repeat("x", size-b.Len()))
	return b.String()
}

func (m *machine) largestArgument() {
	c := m.session("one")
	request, want := filled("1", maxPosted)
	s, err := c.post(request)
	commontest.OK(m.t, err)
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, s, "1")
	commontest.OK(m.t, err)
	same(m.t, messages[len(messages)-1], want)
}

func same(t *testing.T, m wire.Message, want string) {
	t.Helper()
	if string(m.Result) != want {
		t.Errorf("the result has %d bytes, want %d that are the same: %.200s", len(m.Result), len(want), m.Raw)
	}
}

// listener is a client of HTTP+SSE: one stream to listen to, and a URL to post to.
type listener struct {
	*stream
	t    *testing.T
	post string
}

// listen opens an event stream and does the handshake.
func (m *machine) listen(server string) *listener {
	m.t.Helper()
	l := m.listenBehind(server, "")
	l.say(initialize)
	if init, err := l.response("0"); err != nil || init.Result == nil {
		m.t.Fatalf("initialize was answered %s, %v", init.Raw, err)
	}
	l.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return l
}

// listenBehind opens an event stream after an earlier event, "" for none.
func (m *machine) listenBehind(server, last string) *listener {
	m.t.Helper()
	at, err := url.Parse(strings.TrimSuffix(m.urls[server], "mcp") + "sse")
	commontest.OK(m.t, err)
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*patience)
	m.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	commontest.OK(m.t, err)
	r.Header.Set("Accept", wire.MediaSSE)
	if last != "" {
		r.Header.Set(wire.HeaderLastEventID, last)
	}
	res, err := http.DefaultClient.Do(r) //nolint:bodyclose // by stream.close
	commontest.OK(m.t, err)
	l := &listener{stream: &stream{status: res.StatusCode, header: res.Header, body: res.Body, events: wire.NewSSEReader(res.Body, 16<<20)}, t: m.t}
	m.t.Cleanup(l.close)
	first, err := l.events.Next()
	to, bad := at.Parse(string(first.Data))
	if err != nil || bad != nil || first.Name != "endpoint" || to.Host != at.Host {
		m.t.Fatalf("the stream begins with %q %s (%v, %v), want an endpoint on the same host", first.Name, first.Data, err, bad)
	}
	l.post = to.String()
	return l
}

// say posts a message, which the server must accept.
func (l *listener) say(text string) {
	l.t.Helper()
	if answer := web(l.t, http.DefaultClient, http.MethodPost, l.post, text, usual()); answer.status != http.StatusAccepted {
		l.t.Fatalf("a message of %d bytes was answered with %d %s", len(text), answer.status, answer.text)
	}
}
