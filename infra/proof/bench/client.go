package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
)

// protocol is the version of MCP that clients speak, over Streamable HTTP and WebSocket.
const protocol = "2025-06-18"

// wrongAnswer is the error for an answer that does not belong to the request.
type wrongAnswer struct{ what string }

func (e wrongAnswer) Error() string { return "wrong answer: " + e.what }

// failure is the error for a JSON-RPC error in the place of a result.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e failure) Error() string { return fmt.Sprintf("error %d: %s", e.Code, e.Message) }

// request returns a JSON-RPC request.
func request(id int64, method string, params any) ([]byte, error) {
	return json.Marshal(struct {
		Version string `json:"jsonrpc"`
		ID      int64  `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{"2.0", id, method, params})
}

const initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

func initialize(version string) any {
	return map[string]any{
		"protocolVersion": version, "capabilities": map[string]any{},
		"clientInfo": map[string]any{"name": "bench", "version": "1"},
	}
}

// callParams returns the params of tools/call. The tool "slow" may report progress.
func callParams(tool string, arguments any) any {
	params := map[string]any{"name": tool, "arguments": arguments}
	if tool == "slow" {
		params["_meta"] = map[string]any{"progressToken": "p"}
	}
	return params
}

// answer is any message of a server.
type answer struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *failure        `json:"error"`
}

func (a answer) mine(id int64) bool {
	return a.Method == "" && string(a.ID) == strconv.FormatInt(id, 10)
}

func (a answer) result() (json.RawMessage, error) {
	switch {
	case a.Error != nil:
		return nil, *a.Error
	case len(a.Result) == 0:
		return nil, wrongAnswer{"neither result nor error"}
	default:
		return a.Result, nil
	}
}

// checkText returns an error unless a tool's result has the text want.
func checkText(result json.RawMessage, want string) error {
	var r struct {
		Content []struct{ Text string } `json:"content"`
		IsError bool                    `json:"isError"`
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return wrongAnswer{err.Error()}
	}
	if r.IsError || len(r.Content) == 0 || r.Content[0].Text != want {
		return wrongAnswer{fmt.Sprintf("%.200s", result)}
	}
	return nil
}

// echo calls the tool that all servers have, and checks its result.
func echo(ctx context.Context, c *httpClient, message string) error {
	result, err := c.call(ctx, "echo", map[string]string{"message": message})
	if err != nil {
		return err
	}
	return checkText(result, "Echo: "+message)
}

// streamEnded is the error for a response that ended before its answer.
type streamEnded struct{}

func (streamEnded) Error() string { return "the stream ended without the answer" }

// openSocket connects to a WebSocket and initializes a session over it. It reads what comes
// afterwards, because a connection answers pings only while it is read. The caller closes the
// connection.
func openSocket(ctx context.Context, address, key string) (*websocket.Conn, error) {
	conn, _, err := websocket.Dial(ctx, address, &websocket.DialOptions{ //nolint:bodyclose // after the upgrade there is no body
		Subprotocols: []string{"mcp"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + key}},
	})
	if err != nil {
		return nil, err
	}
	body, err := request(1, "initialize", initialize(protocol))
	if err == nil {
		err = conn.Write(ctx, websocket.MessageText, body)
	}
	var a answer
	for err == nil && !a.mine(1) {
		err = wsjson.Read(ctx, conn, &a)
	}
	if err == nil {
		_, err = a.result()
	}
	if err == nil {
		err = conn.Write(ctx, websocket.MessageText, []byte(initialized))
	}
	if err != nil {
		return nil, errors.Join(err, conn.CloseNow())
	}
	go func() {
		for err == nil {
			_, _, err = conn.Read(context.WithoutCancel(ctx))
		}
	}()
	return conn, nil
}
