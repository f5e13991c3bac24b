package dormouse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// peer is an MCP client of one hosted server, over Streamable HTTP. It answers no
// questions of the server. Its methods are for one goroutine.
type peer struct {
	http     *http.Client
	url, key string

	session, version string
	ids              int
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 16 << 20

// initialized is the part of the answer to initialize that commands use.
type initialized struct {
	ProtocolVersion string                     `json:"protocolVersion"`
	Capabilities    map[string]json.RawMessage `json:"capabilities"`
	ServerInfo      struct{ Name, Version string }
}

// initialize opens a session for a client with these capabilities.
func (p *peer) initialize(ctx context.Context, version, capabilities string) (init initialized, err error) {
	p.session, p.version = "", ""
	params := fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"dormouse","version":%q}}`, version, capabilities, builtAs().Version)
	result, err := p.request(ctx, wire.MethodInitialize, params)
	if err != nil {
		return init, err
	}
	if err := json.Unmarshal(result, &init); err != nil {
		return init, fmt.Errorf("the answer to initialize is not as expected: %w", err)
	}
	p.version = init.ProtocolVersion
	res, err := p.send(ctx, http.MethodPost, wire.NewNotification(wire.NotifyInitialized, nil))
	if err != nil {
		return init, err
	}
	return init, res.Body.Close()
}

// list asks for a whole list and returns how many entries it has. Its key is the second
// word of the method, as in tools/list. If the list never ends, n counts what was read.
func (p *peer) list(ctx context.Context, method, key string) (n int, err error) {
	var pages wire.Pages
	for params := "{}"; ; {
		result, err := p.request(ctx, method, params)
		if err != nil {
			return n, err
		}
		var page map[string]json.RawMessage
		var items []json.RawMessage
		if json.Unmarshal(result, &page) != nil || json.Unmarshal(page[key], &items) != nil {
			return n, fmt.Errorf("the answer to %s has no list of %s", method, key)
		}
		n += len(items)
		cursor, err := pages.Next(result)
		if err != nil || cursor == nil {
			return n, err
		}
		params = fmt.Sprintf(`{"cursor":%s}`, cursor)
	}
}

func (p *peer) end(ctx context.Context) {
	if res, err := p.send(ctx, http.MethodDelete, nil); err == nil {
		_ = res.Body.Close()
	}
}

// request sends a request and returns its result. An error response becomes an error with
// the message of the server, or of dormouse.
func (p *peer) request(ctx context.Context, method, params string) (json.RawMessage, error) {
	p.ids++
	id := json.RawMessage(strconv.Itoa(p.ids))
	res, err := p.send(ctx, http.MethodPost, wire.NewRequest(id, method, json.RawMessage(params)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if s := res.Header.Get(wire.HeaderSessionID); s != "" && p.session == "" {
		p.session = s
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		events := wire.NewSSEReader(res.Body, maxAnswer)
		for {
			e, err := events.Next()
			if err != nil {
				return nil, fmt.Errorf("the stream of %s ended before its answer: %w", method, err)
			}
			if result, ok, err := answer(e.Data, id); ok {
				return result, err
			}
		}
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if result, ok, err := answer(body, nil); ok {
		return result, err
	}
	return nil, fmt.Errorf("%s was answered with %s", method, res.Status)
}

// answer reads a message. ok is false if it is no response, or not the one to id; nil
// stands for any.
func answer(text []byte, id json.RawMessage) (result json.RawMessage, ok bool, err error) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &m) != nil || m.Result == nil && m.Error == nil || id != nil && !bytes.Equal(m.ID, id) {
		return nil, false, nil
	}
	if m.Error != nil {
		return nil, true, errors.New(m.Error.Message)
	}
	return m.Result, true, nil
}

func (p *peer) send(ctx context.Context, method string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, p.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range map[string]string{"Authorization": p.key, wire.HeaderSessionID: p.session, wire.HeaderProtocolVersion: p.version} {
		if value != "" && name == "Authorization" {
			value = "Bearer " + value
		}
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	return p.http.Do(r)
}
