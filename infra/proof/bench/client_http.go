package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// maxAnswer limits how much a client reads of one message.
const maxAnswer = 32 << 20

// within is the longest time for one operation of a client.
const within = 30 * time.Second

// httpClient is an MCP client over Streamable HTTP, with one session or without. It checks
// that each answer belongs to its request. Calls may be made at the same time.
type httpClient struct {
	address, version string
	keeps            bool // the client has a session, which it begins with initialize and ends with DELETE
	http             *http.Client
	last             atomic.Int64 // id of the last request
	session          string
	key              string // an API key, "" for none
}

func newHTTPClient(address string, keeps bool) *httpClient {
	return &httpClient{address: address, version: protocol, keeps: keeps, http: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	}}
}

// open initializes a session, unless the client has none.
func (c *httpClient) open(ctx context.Context) error {
	if !c.keeps {
		return nil
	}
	id := c.last.Add(1)
	body, err := request(id, "initialize", initialize(c.version))
	if err != nil {
		return err
	}
	res, err := c.post(ctx, body) //nolint:bodyclose // read closes it
	if err != nil {
		return err
	}
	c.session = res.Header.Get("Mcp-Session-Id")
	if _, err := read(res, id, nil); err != nil {
		return err
	}
	if res, err = c.post(ctx, []byte(initialized)); err != nil { //nolint:bodyclose // finish closes it
		return err
	}
	return finish(res)
}

func (c *httpClient) call(ctx context.Context, tool string, arguments any) (json.RawMessage, error) {
	id := c.last.Add(1)
	body, err := request(id, "tools/call", callParams(tool, arguments))
	if err != nil {
		return nil, err
	}
	res, err := c.post(ctx, body) //nolint:bodyclose // read closes it
	if err != nil {
		return nil, err
	}
	return read(res, id, nil)
}

// close ends the session, as a client does that no longer needs it.
func (c *httpClient) close(ctx context.Context) error {
	defer c.drop()
	if c.session == "" {
		return nil
	}
	res, err := c.do(ctx, http.MethodDelete, c.address, nil, nil) //nolint:bodyclose // finish closes it
	if err != nil {
		return err
	}
	return finish(res)
}

// drop cuts the connections of the client and does not end the session.
func (c *httpClient) drop() { c.http.CloseIdleConnections() }

// post sends a message. The response has a status of success, and the caller closes its body.
func (c *httpClient) post(ctx context.Context, body []byte) (*http.Response, error) {
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	return c.do(ctx, http.MethodPost, c.address, header, body)
}

func (c *httpClient) do(ctx context.Context, method, address string, header http.Header, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if header != nil {
		r.Header = header
	}
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	if c.session != "" || !c.keeps {
		r.Header.Set("Mcp-Protocol-Version", c.version)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // an incomplete reason is better than none
	if bytes.HasPrefix(text, []byte("<")) {
		text = nil // the text is a page for people
	}
	return nil, statusError{res.StatusCode, strings.TrimSpace(string(text))}
}

// statusError is the error for an HTTP status other than success.
type statusError struct {
	status int
	text   string
}

func (e statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.status, e.text) }

// read takes the answer to a request out of a response, which is JSON or an event stream,
// and closes the response. If seen is not nil, it gets each event.
func read(res *http.Response, id int64, seen func(wire.SSE)) (json.RawMessage, error) {
	defer func() { _ = res.Body.Close() }()
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		if err != nil {
			return nil, err
		}
		var a answer
		if err := json.Unmarshal(text, &a); err != nil {
			return nil, wrongAnswer{fmt.Sprintf("%.200q", text)}
		}
		if !a.mine(id) {
			return nil, wrongAnswer{fmt.Sprintf("to request %s, not %d: %.200s", a.ID, id, text)}
		}
		return a.result()
	}
	events := wire.NewSSEReader(res.Body, maxAnswer)
	for {
		e, err := events.Next()
		if err == io.EOF { //nolint:errorlint // the reader promises the bare value
			return nil, streamEnded{}
		}
		if err != nil {
			return nil, err
		}
		if seen != nil {
			seen(e)
		}
		var a answer
		if len(e.Data) == 0 || json.Unmarshal(e.Data, &a) != nil || !a.mine(id) {
			continue
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<10)) // the connection can be used again only if the body was read to its end
		return a.result()
	}
}

// finish reads a response whose body does not matter.
func finish(res *http.Response) error {
	defer func() { _ = res.Body.Close() }()
	_, err := io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
	return err
}
