package transport

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// busy returns the answer to a request that a limit or a lack of capacity refuses. The answer is
// sent without the status 429: Python's client ends its whole session at a 429, and no client that
// we know reads Retry-After. A call of a tool gets a result that is an error, because models read
// results.
func busy(m wire.Message, err error, modern bool) []byte {
	p := problemOf(err)
	limit := limitOf(err)
	if m.Method != wire.MethodToolsCall {
		told := *p.rpc
		told.Data = struct {
			Seconds int `json:"retryAfterSeconds"`
		}{limit.Seconds}
		return wire.ErrorResponse(m.ID, &told)
	}
	result := struct {
		Content []block        `json:"content"`
		IsError bool           `json:"isError"`
		Type    string         `json:"resultType,omitempty"`
		Meta    map[string]any `json:"_meta"`
	}{
		Content: []block{{"text", p.rpc.Message}}, IsError: true, Meta: map[string]any{"dormouse/limit": limit},
	}
	if modern {
		result.Type = "complete"
	}
	body, _ := json.Marshal(result) // strings, numbers and booleans always marshal
	return wire.ResultResponse(m.ID, body)
}

type block struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// limit is the member dormouse/limit in the _meta of a refused call.
type limit struct {
	Kind    string `json:"kind"`
	Scope   string `json:"scope,omitempty"`
	Seconds int    `json:"retryAfterSeconds"`
}

func limitOf(err error) limit {
	l, ok := errors.AsType[*storage.Limited](err)
	if !ok {
		return limit{Kind: "room", Seconds: 1}
	}
	return limit{l.Kind, l.Scope, max(1, int((l.After+time.Second-1)/time.Second))}
}

// flood reports whether err refuses a caller that sends ten times as many requests as a limit
// allows. The endpoint answers a flood with 429, which ends the sessions of some clients, or
// closes its WebSocket.
func flood(err error) bool {
	l, ok := errors.AsType[*storage.Limited](err)
	return ok && l.Flood
}

func busyAll(msgs []wire.Message, err error, modern bool) (answers [][]byte) {
	for _, m := range msgs {
		if m.Kind == wire.Request {
			answers = append(answers, busy(m, err, modern))
		}
	}
	return answers
}

// joined returns answers in the form in which their requests came: one, or a batch.
func joined(answers [][]byte, batch bool) []byte {
	if !batch {
		return answers[0]
	}
	return wire.Array(answers)
}
