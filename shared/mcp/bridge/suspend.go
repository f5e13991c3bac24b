package bridge

import (
	"encoding/json"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// This file is for a modern server that answers a request with inputRequests (MCP 2026-07-28, "Multi
// Round-Trip Requests"), and a legacy client. The client gets each input request as a JSON-RPC
// request, and the server gets its request again, with the client's answers.

// Input is one entry of a server's inputRequests.
type Input struct {
	Key    string
	Method string
	Params json.RawMessage // nil for none
}

// Wants reports whether a result asks the client for input (inputRequests) before there is an answer.
func Wants(result json.RawMessage) bool {
	kind, _ := wire.String(wire.Lookup(result, "resultType"))
	return kind == wire.ResultInputRequired
}

// ReadInputs reads a result for which Wants is true. state is the JSON of its requestState, nil for
// none. If there are no inputs, the request must be sent again with state ([Retry]). A fault says that
// the result is invalid; the client may see the fault.
func ReadInputs(result json.RawMessage) (inputs []Input, state json.RawMessage, fault *wire.Error) {
	state = wire.Lookup(result, requestState)
	if _, ok := wire.String(state); !ok && state != nil {
		return nil, nil, unable("the server asks for input with a requestState that is no string")
	}
	asked := wire.Lookup(result, inputRequests)
	o, ok := objectOf(asked)
	if !ok && asked != nil && string(asked) != "null" {
		return nil, nil, unable("the server asks for input with inputRequests that are no object")
	}
	if len(o) == 0 && state == nil {
		return nil, nil, unable("the server asks for input and does not say which")
	}
	for i, m := range o {
		method, _ := wire.String(wire.Lookup(m.value, "method"))
		in := Input{Key: m.key, Method: method}
		if params := wire.Lookup(m.value, "params"); isObject(params) {
			in.Params = params
		}
		if _, ok := in.question().needs(); !ok || o[i+1:].get(m.key) != nil {
			return nil, nil, unable("the server asks for an input that no client can give, or for one twice")
		}
		inputs = append(inputs, in)
	}
	return inputs, state, nil
}

func (in Input) question() question {
	return question{id: in.Key, key: in.Key, method: in.Method, params: in.Params}
}

// unable returns the error for a call that cannot go on. Its data has the phase tool_call.
func unable(why string) *wire.Error {
	return &wire.Error{Code: wire.CodeInternal, Message: "tool_call: " + why, Data: map[string]any{"phase": "tool_call"}}
}

// Asked is a question that a legacy client gets.
type Asked = storage.Question

// Ask returns a question to a legacy client for each of inputs, and the JSON-RPC requests that ask them.
// The id of question i is [storage.QuestionID] of stream, round and first+i; the first round is 1. index
// is the index in its batch of the request that needs the inputs. A fault says that the client has not
// declared the capability for a question.
func (l Legacy) Ask(stream string, round, first, index int, inputs []Input) (asked []Asked, requests [][]byte, fault *wire.Error) {
	for i, in := range inputs {
		id := storage.QuestionID(storage.StreamID(stream), round, first+i)
		raw, fault := l.request(in, id)
		if fault != nil {
			return nil, nil, fault
		}
		asked = append(asked, Asked{ID: id, Key: in.Key, Method: in.Method, Of: index})
		requests = append(requests, raw)
	}
	return asked, requests, nil
}

// request returns the request that asks a legacy client for an input.
func (l Legacy) request(in Input, id string) ([]byte, *wire.Error) {
	path, _ := in.question().needs()
	if !declared(l.capabilities.encode(), path) {
		return nil, unable("the server needs the capability " + strings.Join(path, ".") + ", which the client has not declared")
	}
	params := in.Params
	if o, ok := objectOf(params); ok && path[len(path)-1] == "url" && o.get("elicitationId") == nil {
		params = o.with("elicitationId", text(id)).encode() // 2025-11-25 requires an elicitationId
	}
	if o, ok := objectOf(params); ok && len(o) == 0 {
		params = nil
	}
	return wire.NewRequest(text(id), in.Method, params), nil
}

// Retry returns a request with the server's requestState and without answers to earlier questions.
// [Again] adds the new answers.
func Retry(raw []byte, state json.RawMessage) []byte {
	m, err := wire.Parse(raw)
	if err != nil {
		return raw // impossible: it could be parsed when the client sent it
	}
	params, _ := objectOf(m.Params)
	params = params.without(inputResponses, requestState)
	if state != nil {
		params = append(params, member{requestState, state})
	}
	return withParams(m, params)
}

func withParams(m wire.Message, params object) []byte {
	if out, ok := wire.Replace(m.Raw, params.encode(), "params"); ok {
		return out
	}
	return wire.NewRequest(m.ID, m.Method, params.encode())
}

// Again adds the client's answers to raw, a request that [Retry] has made, or a batch of them. If a client
// answered an elicitation with an error, the server gets "action": "cancel". An error of the client for
// another question ends the call, and Again returns it. The server gets the client's whole response to a
// question without Method.
func Again(raw []byte, questions []storage.Question, answers []storage.Answer) ([]byte, *wire.Error) {
	given := map[string]wire.Message{}
	for _, a := range answers {
		if m, err := wire.Parse(a.Raw); err == nil && m.Kind == wire.Response {
			given[a.Question] = m
		}
	}
	msgs, batch, err := wire.ParseBody(raw)
	if err != nil {
		return nil, unable("the request that was to be sent again cannot be read")
	}
	inputs := make([]object, len(msgs))
	for _, q := range questions {
		if q.Of < 0 || q.Of >= len(msgs) {
			return nil, unable("a question belongs to no request")
		}
		value, fault := answerTo(q, given[q.ID])
		if fault != nil {
			return nil, fault
		}
		inputs[q.Of] = inputs[q.Of].with(q.Key, value)
	}
	out := make([]string, len(msgs))
	for i, m := range msgs {
		params, _ := objectOf(m.Params)
		if len(inputs[i]) > 0 {
			params = params.with(inputResponses, inputs[i].encode())
		}
		out[i] = string(withParams(m, params))
	}
	if !batch {
		return []byte(out[0]), nil
	}
	return []byte("[" + strings.Join(out, ",") + "]"), nil
}

// answerTo returns the client's answer to a question as an entry of inputResponses.
func answerTo(q storage.Question, m wire.Message) (json.RawMessage, *wire.Error) {
	switch {
	case q.Method == "" && m.Raw != nil:
		return m.Raw, nil
	case isObject(m.Result):
		return m.Result, nil
	case q.Method == wire.MethodElicit:
		return json.RawMessage(`{"action":"cancel"}`), nil
	case m.Error != nil:
		said, _ := wire.String(wire.Lookup(m.Error, "message"))
		return nil, unable("the client answered " + q.Method + " with an error, which the server cannot be told: " + said)
	default:
		return nil, unable("the client answered " + q.Method + " with no object")
	}
}
