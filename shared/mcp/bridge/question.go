package bridge

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// question is a server's request to the client, such as elicitation/create.
type question struct {
	id     string        // the id of the JSON-RPC request with which the server asks
	key    string        // the question's key in inputRequests
	index  storage.Index // index of the question's event in the log
	method string
	params json.RawMessage
	raw    []byte // the JSON-RPC request, if it reaches a legacy client as it is
}

// Answer is a response to the server's question with the id Question.
type Answer struct {
	Question string
	Raw      []byte // the JSON-RPC response
}

// input returns the question as an entry of inputRequests. The entry always has params,
// because go-sdk 1.8 cannot read an entry without params.
func (q question) input() json.RawMessage {
	params, _ := objectOf(q.params)
	params = params.without("elicitationId", "task").withoutMeta(func(key string) bool { return isModern(key) || key == wire.MetaProgressToken })
	return object{{"method", text(q.method)}, {"params", params.encode()}}.encode()
}

// needs returns the capability, as a path, that a client must have declared to get this
// question. ok is false for a question that no client can get.
func (q question) needs() (path []string, ok bool) {
	switch q.method {
	case wire.MethodRootsList:
		return []string{"roots"}, true
	case wire.MethodCreateMessage:
		if wire.Lookup(q.params, "tools") != nil || wire.Lookup(q.params, "toolChoice") != nil {
			return []string{"sampling", "tools"}, true
		}
		return []string{"sampling"}, true
	case wire.MethodElicit:
		if mode, _ := wire.String(wire.Lookup(q.params, "mode")); mode == "url" {
			return []string{"elicitation", "url"}, true
		}
		return []string{"elicitation", "form"}, true
	default:
		return nil, false
	}
}

// declared reports whether a client's capabilities have the capability at path. An elicitation
// without url also declares elicitation.form.
func declared(capabilities json.RawMessage, path []string) bool {
	if isObject(wire.Lookup(capabilities, path...)) {
		return true
	}
	if slices.Equal(path, []string{"elicitation", "form"}) {
		modes, ok := objectOf(wire.Lookup(capabilities, "elicitation"))
		return ok && modes.get("url") == nil
	}
	return false
}

// required returns the JSON with which a client declares the capability at path.
func required(path []string) json.RawMessage {
	value := json.RawMessage("{}")
	for _, key := range slices.Backward(path) {
		value = object{{key, value}}.encode()
	}
	return value
}

// withContext sets includeContext of a sampling request to "none" for a client that has not
// declared sampling.context.
func (q question) withContext(capabilities json.RawMessage) question {
	if q.method == wire.MethodCreateMessage && !declared(capabilities, []string{"sampling", "context"}) {
		q.params, _ = wire.Replace(q.params, json.RawMessage(`"none"`), "includeContext")
	}
	return q
}

// refused returns an answer in place of a client that cannot be asked: "action": "cancel" for an
// elicitation, and otherwise the error that the client does not have the method.
func (q question) refused(why string) Answer {
	id := text(q.id)
	if q.method == wire.MethodElicit {
		return Answer{q.id, wire.ResultResponse(id, json.RawMessage(`{"action":"cancel"}`))}
	}
	return Answer{q.id, wire.ErrorResponse(id, &wire.Error{Code: wire.CodeMethodNotFound, Message: why})}
}

// Unasked returns the answer to a question that the server has asked outside of a request, when no
// modern client can be asked. ok is false if raw is no question.
func Unasked(raw []byte) (a Answer, ok bool) {
	m, err := wire.Parse(raw)
	key, isText := wire.String(m.ID)
	if err != nil || m.Kind != wire.Request || !isText {
		return Answer{}, false
	}
	q := question{id: key, method: m.Method, params: m.Params}
	return q.refused("the client can only be asked while one of its requests is served"), true
}

// name returns the name of the field if the question is a form with one field, otherwise "".
func (q question) name() string {
	fields, ok := objectOf(wire.Lookup(q.params, "requestedSchema", "properties"))
	if !ok || q.method != wire.MethodElicit || len(fields) != 1 || len(fields[0].key) > maxName {
		return ""
	}
	return fields[0].key
}

// maxName bounds a key from a server's schema, in bytes.
const maxName = 128

// response returns an entry of a client's inputResponses as the JSON-RPC response to the server's
// question with this id.
func response(id, key, method string, input json.RawMessage) (Answer, error) {
	if !isObject(input) {
		return Answer{}, invalid("params.%s member %q must be an object: the result of %s", inputResponses, key, method)
	}
	if method == wire.MethodElicit {
		action, _ := wire.String(wire.Lookup(input, "action"))
		if action != "accept" && action != "decline" && action != "cancel" {
			return Answer{}, invalid("params.%s member %q must have the action accept, decline or cancel", inputResponses, key)
		}
	}
	return Answer{id, wire.ResultResponse(text(id), input)}, nil
}

// elicitations returns the questions that ask the user to open the URLs in a server's error with code
// -32042 (2025-11-25).
func elicitations(fault json.RawMessage) []question {
	var qs []question
	for params := range wire.Elements(wire.Lookup(fault, "data", "elicitations")) {
		o, ok := objectOf(params)
		if !ok {
			return nil
		}
		key := "url-" + strconv.Itoa(len(qs)+1)
		qs = append(qs, question{
			id: key, key: key, method: wire.MethodElicit, params: o.with("mode", text("url")).encode(),
		})
	}
	return qs
}
