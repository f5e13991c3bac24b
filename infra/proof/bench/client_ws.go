package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// inbox passes the answers on one stream to the callers that wait for them.
type inbox struct {
	mu      sync.Mutex
	waiting map[string]chan answer
	ended   error
}

func newInbox() *inbox { return &inbox{waiting: map[string]chan answer{}} }

// expect returns the channel for an answer. Call it before the request is sent.
func (b *inbox) expect(id int64) chan answer {
	answers := make(chan answer, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended != nil {
		close(answers)
		return answers
	}
	b.waiting[strconv.FormatInt(id, 10)] = answers
	return answers
}

func (b *inbox) deliver(text []byte) {
	var a answer
	if json.Unmarshal(text, &a) != nil || a.Method != "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if answers, ok := b.waiting[string(a.ID)]; ok {
		delete(b.waiting, string(a.ID))
		answers <- a
	}
}

func (b *inbox) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = err
	for _, answers := range b.waiting {
		close(answers)
	}
	b.waiting = map[string]chan answer{}
}

func (b *inbox) wait(ctx context.Context, answers chan answer) (json.RawMessage, error) {
	select {
	case a, ok := <-answers:
		if !ok {
			return nil, fmt.Errorf("the connection ended: %w", b.ended)
		}
		return a.result()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// socketClient speaks MCP over a WebSocket, one message in each.
type socketClient struct {
	address, version string
	key              string // an API key, "" for none
	ids              requestIDs
	conn             *websocket.Conn
	answers          *inbox
}

func newSocketClient(address, version string) *socketClient {
	return &socketClient{address: address, version: version, answers: newInbox()}
}

func (c *socketClient) open(ctx context.Context) error {
	header := http.Header{}
	if c.key != "" {
		header.Set("Authorization", "Bearer "+c.key)
	}
	conn, res, err := websocket.Dial(ctx, c.address, &websocket.DialOptions{Subprotocols: []string{"mcp"}, HTTPHeader: header})
	if err != nil {
		return err
	}
	if res.Body != nil {
		_ = res.Body.Close() // nothing is in it after the upgrade
	}
	c.conn = conn
	conn.SetReadLimit(maxAnswer)
	go func() {
		for {
			_, text, err := conn.Read(context.WithoutCancel(ctx))
			if err != nil {
				c.answers.end(err)
				return
			}
			c.answers.deliver(text)
		}
	}()
	if _, err := c.ask(ctx, "initialize", initialize(c.version)); err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, []byte(initialized))
}

func (c *socketClient) call(ctx context.Context, tool string, arguments any) (json.RawMessage, error) {
	return c.ask(ctx, "tools/call", callParams(c.version, tool, arguments))
}

func (c *socketClient) ask(ctx context.Context, method string, params any) (json.RawMessage, error) {
	id := c.ids.next()
	body, err := request(id, method, params)
	if err != nil {
		return nil, err
	}
	answers := c.answers.expect(id)
	if err := c.conn.Write(ctx, websocket.MessageText, body); err != nil {
		return nil, err
	}
	return c.answers.wait(ctx, answers)
}

func (c *socketClient) close(context.Context) error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close(websocket.StatusNormalClosure, "")
}

func (c *socketClient) drop() {
	if c.conn != nil {
		_ = c.conn.CloseNow() // it is gone either way
	}
}

// sseClient speaks HTTP+SSE: posts, and one stream with all answers.
type sseClient struct {
	*httpClient
	answers *inbox
	cancel  context.CancelFunc
	post    string // where messages go
}

func newSSEClient(address, version string) *sseClient {
	return &sseClient{httpClient: newHTTPClient(address, version, true), answers: newInbox(), cancel: func() {}}
}

func (c *sseClient) open(ctx context.Context) error {
	stream, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	giveUp := context.AfterFunc(ctx, cancel)
	res, err := c.do(stream, http.MethodGet, c.address, http.Header{"Accept": {"text/event-stream"}}, nil) //nolint:bodyclose // by the reader below
	if err != nil {
		return err
	}
	events := wire.NewSSEReader(res.Body, maxAnswer)
	first, err := events.Next()
	if err != nil {
		_ = res.Body.Close()
		return err
	}
	giveUp()
	at, err := res.Request.URL.Parse(strings.TrimSpace(string(first.Data)))
	if err != nil {
		return err
	}
	c.post = at.String()
	go func() {
		defer func() { _ = res.Body.Close() }()
		for {
			e, err := events.Next()
			if err != nil {
				c.answers.end(err)
				return
			}
			c.answers.deliver(e.Data)
		}
	}()
	if _, err := c.ask(ctx, "initialize", initialize(c.version)); err != nil {
		return err
	}
	return c.send(ctx, []byte(initialized))
}

func (c *sseClient) call(ctx context.Context, tool string, arguments any) (json.RawMessage, error) {
	return c.ask(ctx, "tools/call", callParams(c.version, tool, arguments))
}

func (c *sseClient) ask(ctx context.Context, method string, params any) (json.RawMessage, error) {
	id := c.ids.next()
	body, err := request(id, method, params)
	if err != nil {
		return nil, err
	}
	answers := c.answers.expect(id)
	if err := c.send(ctx, body); err != nil {
		return nil, err
	}
	return c.answers.wait(ctx, answers)
}

func (c *sseClient) send(ctx context.Context, body []byte) error {
	res, err := c.do(ctx, http.MethodPost, c.post, http.Header{"Content-Type": {"application/json"}}, body) //nolint:bodyclose // finish closes it
	if err != nil {
		return err
	}
	return finish(res)
}

func (c *sseClient) close(context.Context) error {
	c.drop()
	return nil
}

func (c *sseClient) drop() {
	c.cancel()
	c.httpClient.drop()
}

// within is the longest time for one operation of a client. After it the operation has
// failed.
const within = 30 * time.Second
