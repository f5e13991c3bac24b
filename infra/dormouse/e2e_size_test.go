//go:build e2e

package dormouse_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const (
	maxPosted = 4 << 20 // bytes of the body of a POST
	maxPushed = 131_072 // most bytes of a message to a WebSocket client
)

// TestE2ESizes sends messages of the largest sizes through the whole machine:
// gateway, functions, store, relay in its parts of 120 KB, box and process. Every
// byte must arrive unchanged.
func TestE2ESizes(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start()
	t.Run("the largest argument over Streamable HTTP", func(t *testing.T) { m.in(t).largestArgument() })
	t.Run("a result of 5 MiB over Streamable HTTP", func(t *testing.T) { m.in(t).largeResult() })
	t.Run("the same over HTTP+SSE", func(t *testing.T) { m.in(t).largeOverSSE() })
	t.Run("one byte more is refused by both", func(t *testing.T) { m.in(t).tooLarge() })
	t.Run("up to the limit of WebSockets and beyond it", func(t *testing.T) { m.in(t).largestPush() })
}

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

// quoting returns a client's answer to a question, and the result of the call that
// asked. The result quotes the answer, so each backslash becomes two.
func quoting(t *testing.T, text string) (answer, result string) {
	t.Helper()
	answer = `"result":{"action":"accept","content":{"n":"` + text + `"}}}`
	quoted, err := json.Marshal(`{"jsonrpc":"2.0","id":"s1",` + answer + "\n")
	if err != nil {
		t.Fatal(err)
	}
	return answer, `{"content":[{"type":"text","text":` + string(quoted) + `}]}`
}

// fiveMiB returns an answer below the limit of a POST, and a result of at least 5 MiB
// that quotes the answer.
func fiveMiB(t *testing.T) (answer, result string) {
	t.Helper()
	answer, result = quoting(t, filling(3_300_000, 2))
	if len(result) < 5<<20 || len(answer) > maxPosted {
		t.Fatalf("an answer of %d bytes makes a result of %d", len(answer), len(result))
	}
	return answer, result
}

func (m *machine) largestArgument() {
	c := m.session("one")
	request, want := filled("1", maxPosted)
	s, err := c.post(request)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, s, "1")
	if err != nil {
		m.t.Fatal(err)
	}
	same(m.t, messages[len(messages)-1], want)
}

func same(t *testing.T, m wire.Message, want string) {
	t.Helper()
	if string(m.Result) != want {
		t.Errorf("the result has %d bytes, want %d that are the same: %.200s", len(m.Result), len(want), m.Raw)
	}
}

func (m *machine) largeResult() {
	c := m.session("one")
	answer, want := fiveMiB(m.t)
	c.quoted("1", answer, want)
}

// quoted makes the call whose result quotes an answer.
func (c *client) quoted(id, answer, want string) {
	c.t.Helper()
	s, err := c.post(c.request(id, "ask", `{"method":"elicitation/create"}`))
	if err != nil {
		c.t.Fatal(err)
	}
	question, err := s.next()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.tell(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s`, question.ID, answer)); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := c.patience()
	defer cancel()
	messages, err := c.follow(ctx, s, id)
	if err != nil {
		c.t.Fatal(err)
	}
	same(c.t, messages[len(messages)-1], want)
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
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*patience)
	m.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		m.t.Fatal(err)
	}
	r.Header.Set("Accept", wire.MediaSSE)
	if last != "" {
		r.Header.Set(wire.HeaderLastEventID, last)
	}
	res, err := http.DefaultClient.Do(r) //nolint:bodyclose // by stream.close
	if err != nil {
		m.t.Fatal(err)
	}
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

func (m *machine) largeOverSSE() {
	l := m.listen("one")
	request, want := filled("1", maxPosted)
	l.say(request)
	end, err := l.response("1")
	if err != nil {
		m.t.Fatal(err)
	}
	same(m.t, end, want)

	answer, want := fiveMiB(m.t)
	l.say((*client)(nil).request("2", "ask", `{"method":"elicitation/create"}`))
	question, err := l.next()
	if err != nil || question.Method != "elicitation/create" {
		m.t.Fatalf("the call has begun with %.200s, %v", question.Raw, err)
	}
	l.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s`, question.ID, answer))
	if end, err = l.response("2"); err != nil {
		m.t.Fatal(err)
	}
	same(m.t, end, want)
}

// tooLarge checks that the server refuses messages over the limit, names the limit,
// and does not execute them.
func (m *machine) tooLarge() {
	c, l := m.session("one"), m.listen("one")
	request, _ := filled("1", maxPosted+1)
	for over, answer := range map[string]page{
		"Streamable HTTP": web(m.t, http.DefaultClient, http.MethodPost, c.url, request, usual(wire.HeaderSessionID, c.session, wire.HeaderProtocolVersion, wire.V20251125)),
		"HTTP+SSE":        web(m.t, http.DefaultClient, http.MethodPost, l.post, request, usual()),
	} {
		if answer.status != http.StatusRequestEntityTooLarge || !strings.Contains(answer.text, "4194304 bytes") {
			m.t.Errorf("%s: status %d %.200s, want 413 and the limit", over, answer.status, answer.text)
		}
	}
	if got := c.text("count", ""); got != "1" {
		m.t.Errorf("behind it the counter says %s, want 1", got)
	}
	l.say((*client)(nil).request("2", "count", ""))
	if end, err := l.response("2"); err != nil || textOf(end) != "1" {
		m.t.Errorf("behind it the counter says %.200s, %v, want 1", end.Raw, err)
	}
}

// largestPush checks the largest message that fits, and one byte more. The error
// names both numbers. Over Streamable HTTP, the same call returns its whole result.
func (m *machine) largestPush() {
	const backslashes = 25_000
	s := m.talk("one")
	for n, size := range []int{maxPushed, maxPushed + 1} {
		id := fmt.Sprint(n + 1)
		_, bare := quoting(m.t, strings.Repeat(`\\`, backslashes))
		message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, bare)
		answer, want := quoting(m.t, strings.Repeat(`\\`, backslashes)+strings.Repeat("x", size-len(message)))
		if asked := s.ask("ask", `{"method":"elicitation/create"}`); asked != id {
			m.t.Fatalf("the call is %s", asked)
		}
		question, err := s.hear()
		if err != nil {
			m.t.Fatal(err)
		}
		s.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s`, question.ID, answer))
		end := s.end(id)
		if size <= maxPushed {
			same(m.t, end, want)
			continue
		}
		var f struct {
			Message string
			Data    struct{ Bytes, Limit int }
		}
		if json.Unmarshal(end.Error, &f) != nil || f.Data.Bytes != size || f.Data.Limit != maxPushed || !strings.Contains(f.Message, "use Streamable HTTP") {
			m.t.Errorf("%d bytes came as %.300s", size, end.Raw)
		}
		m.session("one").quoted(id, answer, want)
	}
}
