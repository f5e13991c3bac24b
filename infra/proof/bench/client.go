package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
)

// client is one MCP client with one session, or without one if the protocol has no
// sessions. It checks that each answer belongs to its request. Calls may be made at the
// same time.
type client interface {
	// open connects, and initializes if the protocol has initialize.
	open(ctx context.Context) error
	// call sends tools/call and returns the result.
	call(ctx context.Context, tool string, arguments any) (json.RawMessage, error)
	// close ends the session, as a client does that no longer needs it.
	close(ctx context.Context) error
	// drop cuts the client's connections and does not end the session.
	drop()
}

// dialect is how a client speaks to an endpoint.
type dialect struct {
	name    string
	version string
	make    func(address, version string) client
}

// The dialects of the benchmark.
func streamable() dialect {
	return dialect{"Streamable HTTP 2025-06-18", "2025-06-18", func(a, v string) client { return newHTTPClient(a, v, true) }}
}

func sessionless() dialect {
	return dialect{"Streamable HTTP 2025-06-18, no session", "2025-06-18", func(a, v string) client { return newHTTPClient(a, v, false) }}
}

func modern() dialect {
	return dialect{"2026-07-28", "2026-07-28", func(a, v string) client { return newHTTPClient(a, v, false) }}
}

func eventStream() dialect {
	return dialect{"HTTP+SSE 2024-11-05", "2024-11-05", func(a, v string) client { return newSSEClient(a, v) }}
}

func webSocket() dialect {
	return dialect{"WebSocket", "2025-06-18", func(a, v string) client { return newSocketClient(a, v) }}
}

// wrongAnswer is the error for an answer that does not belong to the request.
type wrongAnswer struct{ what string }

func (e wrongAnswer) Error() string { return "wrong answer: " + e.what }

// failure is the error for a JSON-RPC error in the place of a result.
type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e failure) Error() string { return fmt.Sprintf("error %d: %s", e.Code, e.Message) }

// requestIDs numbers the requests of one client.
type requestIDs struct{ last atomic.Int64 }

func (r *requestIDs) next() int64 { return r.last.Add(1) }

// request is a JSON-RPC request; a nil params is left out.
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

// callParams returns the params of tools/call, with the facts that a modern client sends
// in each request.
func callParams(version, tool string, arguments any) any {
	params := map[string]any{"name": tool, "arguments": arguments}
	meta := map[string]any{}
	if version == "2026-07-28" {
		meta["io.modelcontextprotocol/protocolVersion"] = version
		meta["io.modelcontextprotocol/clientInfo"] = map[string]any{"name": "bench", "version": "1"}
		meta["io.modelcontextprotocol/clientCapabilities"] = map[string]any{}
	}
	if tool == "slow" {
		meta["progressToken"] = "p"
	}
	if len(meta) > 0 {
		params["_meta"] = meta
	}
	return params
}

// answer is any message of a server. mine reports whether it answers a request.
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

// checkText compares the text of a tool's result.
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
func echo(ctx context.Context, c client, message string) error {
	result, err := c.call(ctx, "echo", map[string]string{"message": message})
	if err != nil {
		return err
	}
	return checkText(result, "Echo: "+message)
}

// streamEnded is the error for a response that ended before its answer.
type streamEnded struct{}

func (streamEnded) Error() string { return "the stream ended without the answer" }
