// Package logline turns log lines of function programs back into the events of package observe
// from which they were written.
package logline

import (
	"encoding/json"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Parse returns the event of a line that [observe.Log] has written. ok is false for a line that is
// not from a logger, such as the output of a panic. From other log lines Parse makes events whose
// Kind is the message.
func Parse(line string) (e *observe.Event, ok bool) {
	var said struct {
		Msg       string           `json:"msg"`
		Server    string           `json:"server"`
		Tenant    string           `json:"tenant"`
		Principal string           `json:"principal"`
		Session   storage.ID       `json:"session_id"`
		Conn      string           `json:"connection_id"`
		MS        int64            `json:"duration_ms"`
		Code      storage.Code     `json:"code"`
		Units     *storage.Units   `json:"units"`
		Wakes     int              `json:"wakes"`
		In        int              `json:"bytes_in"`
		Out       int              `json:"bytes_out"`
		Method    string           `json:"rpc_method"`
		Type      string           `json:"type"`
		Trace     string           `json:"trace"`
		Client    string           `json:"client"`
		Parent    string           `json:"traceparent"`
		Protocol  string           `json:"protocol"`
		Refused   bool             `json:"refused"`
		Refusal   string           `json:"refusal"`
		Caller    *observe.Caller  `json:"caller"`
		Tool      string           `json:"tool"`
		Outcome   string           `json:"outcome"`
		Stream    storage.StreamID `json:"stream"`
		Why       string           `json:"why"`
		Ended     []observe.Ended  `json:"ended"`
		Traces    []string         `json:"traces"`
	}
	if json.Unmarshal([]byte(line), &said) != nil || said.Msg == "" {
		return nil, false
	}
	e = &observe.Event{
		Kind: said.Msg, RPCMethod: said.Method, Type: said.Type, Conn: said.Conn, Trace: said.Trace,
		Client: said.Client, Parent: said.Parent, Protocol: said.Protocol, Refused: said.Refused, Refusal: said.Refusal, Caller: said.Caller,
		Tool: said.Tool, Outcome: said.Outcome, Stream: said.Stream, Why: said.Why, Ended: said.Ended, Traces: said.Traces,
		Account: storage.Account{
			Server: said.Server, Tenant: said.Tenant, Principal: said.Principal, Session: said.Session, Code: said.Code,
			In: said.In, Out: said.Out, Took: time.Duration(said.MS) * time.Millisecond,
		},
	}
	if said.Units != nil {
		e.Spent = &storage.Spent{Units: *said.Units, Wakes: said.Wakes}
	}
	return e, true
}
