package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Kind tells the three shapes of a JSON-RPC message apart.
type Kind uint8

const (
	// Request has a method and an id and wants a response.
	Request Kind = iota + 1
	// Notification has a method and no id, and gets no response.
	Notification
	// Response answers a request, with a result or an error.
	Response
)

// maxMembers bounds the top-level members of a message, because each is compared with all others.
// JSON-RPC defines six.
const maxMembers = 64

// Message is one JSON-RPC 2.0 message, taken apart but not decoded. Every slice aliases
// the bytes given to [Parse]; a change of those bytes changes the message.
type Message struct {
	// Kind is never zero in a message that [Parse] returned without an error.
	Kind Kind
	// ID is the exact token of the id, a JSON string or number. It is nil on a
	// notification, and on an error response whose id is null or missing.
	ID json.RawMessage
	// Method is the decoded method name, "" on a response.
	Method string
	// Params of a request or a notification is a JSON object; nil when absent, null or [].
	Params json.RawMessage
	// Result and Error: a response has one of the two, and the other is nil. Result is
	// any JSON value, Error is a JSON object.
	Result, Error json.RawMessage
	// Raw is the whole message as it was received: one JSON object without surrounding
	// whitespace, including members that JSON-RPC does not know. To pass a message on to
	// another reader, use [Message.Line].
	Raw []byte
}

// Parse reads one JSON-RPC 2.0 message.
//
// Errors are of type *[Error]. [CodeParse]: raw is not JSON, not UTF-8, or nested deeper
// than 1000 levels. [CodeInvalidRequest]: raw is JSON but not a JSON-RPC message. If the
// id could still be read, the returned Message has it for the error response; use no other
// field of it.
//
// Parse is stricter than JSON-RPC where MCP is: an id is a string or a number, and null only on an error
// response. A number with a fraction or an exponent stays unchanged. At the top, in params and in
// params._meta, Parse refuses a key that two readers could understand differently: a key that comes
// twice, whatever its case, or a key such as "ID", which differs from a known one only in case.
func Parse(raw []byte) (Message, error) {
	if err := check(raw); err != nil {
		return Message{}, err
	}
	return parse(trim(raw))
}

// ParseBody reads the body of a POST: one message, or a batch of them in a non-empty
// array. Only MCP 2025-03-26 has batches; the caller decides whether to accept one. One
// bad element refuses the whole batch, so none of its messages has been executed when the
// client gets the error. Errors are those of [Parse]. batch is right even with an error. A
// single refused message is returned with its error, as by [Parse].
func ParseBody(body []byte) (msgs []Message, batch bool, err error) {
	body = trim(body)
	batch = len(body) > 0 && body[0] == '['
	if err := check(body); err != nil {
		return nil, batch, err
	}
	if !batch {
		m, err := parse(body)
		return []Message{m}, false, err
	}
	for element := range Elements(body) {
		m, err := parse(element)
		if err != nil {
			return nil, true, err
		}
		msgs = append(msgs, m)
	}
	if msgs == nil {
		return nil, true, invalid("a batch must hold at least one message, this array is empty")
	}
	return msgs, true, nil
}

// parse reads one message from checked and trimmed JSON.
func parse(raw []byte) (Message, error) {
	if raw[0] != '{' {
		return Message{}, invalid("a message must be a JSON object, this is %s", typeOf(raw))
	}
	t, err := split(raw)
	if err != nil {
		return Message{ID: usableID(t.id)}, err
	}
	m, err := t.message()
	if err == nil {
		err = m.checkParams()
	}
	if err != nil {
		return Message{ID: usableID(t.id)}, err
	}
	m.Raw = raw[:len(raw):len(raw)]
	return m, nil
}

// parts are the members that JSON-RPC knows, nil if absent.
type parts struct {
	version, id, method, params, result, fault json.RawMessage
}

// split collects the members of a message. With an error it returns the members that it
// could read.
func split(raw []byte) (parts, error) {
	var t parts
	var others []string
	var wrong error
	for i, count := 1, 0; ; count++ {
		m, next, ok := nextMember(raw, i)
		if !ok {
			return t, wrong
		}
		i = next
		if count == maxMembers {
			return t, invalid("a message with more than %d top-level members is refused", maxMembers)
		}
		slot := t.slot(m.key)
		if slot == nil {
			others, wrong = other(others, m.key, wrong)
			continue
		}
		if *slot != nil {
			*slot = nil
			return t, invalid("member %s comes twice, send it once", m.key)
		}
		*slot = raw[m.start:m.end:m.end]
	}
}

// other records a member that JSON-RPC does not know. It refuses a member that comes twice, or that some
// reader takes for a known one.
func other(others []string, token []byte, wrong error) ([]string, error) {
	key := string(decoded(token))
	name := atTop.named(fold(nil, []byte(key)))
	switch {
	case wrong != nil:
	case name != "":
		wrong = invalid("member %q is refused, because a server could take it for %q: write %q", key, name, name)
	case slices.Contains(others, key):
		wrong = invalid("member %q comes twice, send it once", key)
	}
	return append(others, key), wrong
}

// slot returns the field for the member with this key, nil for a member that JSON-RPC does not know.
func (t *parts) slot(token []byte) *json.RawMessage {
	switch string(decoded(token)) {
	case "jsonrpc":
		return &t.version
	case "id":
		return &t.id
	case "method":
		return &t.method
	case "params":
		return &t.params
	case "result":
		return &t.result
	case "error":
		return &t.fault
	default:
		return nil
	}
}

// message applies the rules of JSON-RPC 2.0 §4 and §5 to the members.
func (t *parts) message() (Message, error) {
	if !is(t.version, "2.0") {
		return Message{}, invalid(`member "jsonrpc" must be the string "2.0"`)
	}
	if t.method != nil {
		return t.call()
	}
	switch {
	case t.result == nil && t.fault == nil:
		return Message{}, invalid("a message needs a method, a result or an error")
	case t.result != nil && t.fault != nil:
		return Message{}, invalid("a response must not have both a result and an error")
	case t.fault != nil && t.fault[0] != '{':
		return Message{}, invalid(`member "error" must be an object, this is %s`, typeOf(t.fault))
	}
	id := usableID(t.id)
	if id == nil && (t.fault == nil || t.id != nil && t.id[0] != 'n') {
		return Message{}, invalidID(t.id)
	}
	return Message{Kind: Response, ID: id, Params: t.params, Result: t.result, Error: t.fault}, nil
}

// call reads a request or a notification.
func (t *parts) call() (Message, error) {
	method, ok := String(t.method)
	if len(t.params) > 0 && (t.params[0] == 'n' || t.params[0] == '[' && len(trim(t.params[1:len(t.params)-1])) == 0) {
		t.params = nil // some encoders write null, or PHP's empty array, for an absent member
	}
	switch {
	case !ok:
		return Message{}, invalid(`member "method" must be a string, this is %s`, typeOf(t.method))
	case t.result != nil || t.fault != nil:
		return Message{}, invalid("a message with a method must not have a result or an error")
	case t.params != nil && t.params[0] != '{':
		return Message{}, invalid(`member "params" must be an object, this is %s`, typeOf(t.params))
	case t.id == nil:
		return Message{Kind: Notification, Method: method, Params: t.params}, nil
	case usableID(t.id) == nil:
		return Message{}, invalidID(t.id)
	case strings.HasPrefix(method, "notifications/"):
		return Message{}, invalid("%s is a notification: send it without an id", method)
	}
	return Message{Kind: Request, ID: t.id, Method: method, Params: t.params}, nil
}

// Line encodes the message anew, on one line, from its fields other than Raw. It leaves
// out members of Raw that are in no field. To send another id, params or result, set the
// field first.
func (m Message) Line() []byte {
	var out []byte
	switch m.Kind {
	case Request:
		out = NewRequest(m.ID, m.Method, m.Params)
	case Notification:
		out = NewNotification(m.Method, m.Params)
	case Response:
		if m.Error == nil {
			out = ResultResponse(m.ID, m.Result)
			break
		}
		out = appendID(make([]byte, 0, 40+len(m.ID)+len(m.Error)), m.ID)
		out = append(append(append(out, `,"error":`...), m.Error...), '}')
	}
	return Compact(out)
}

// SameID reports whether two id tokens are the same id: the same JSON type and
// value. Strings are compared decoded ("a" equals "\u0061"), numbers digit by
// digit (1 and 1.0 differ, as they do for some clients). An absent id equals none.
func SameID(a, b json.RawMessage) bool {
	if usableID(a) == nil || usableID(b) == nil {
		return false
	}
	if bytes.Equal(a, b) {
		return true
	}
	x, ok := String(a)
	if !ok {
		return false
	}
	y, ok := String(b)
	// Different lone surrogates decode to the same replacement character. A string with this
	// character equals only the same bytes.
	return ok && x == y && !strings.ContainsRune(x, utf8.RuneError)
}

// usableID returns the token if it is a string or a number, else nil.
func usableID(token json.RawMessage) json.RawMessage {
	if len(token) == 0 {
		return nil
	}
	if c := token[0]; c == '"' || c == '-' || c >= '0' && c <= '9' {
		return token
	}
	return nil
}

func invalidID(token json.RawMessage) *Error {
	return invalid(`member "id" must be a string or a number, this is %s`, typeOf(token))
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: CodeInvalidRequest, Message: fmt.Sprintf(format, args...)}
}

// typeOf names the JSON type of a value for an error text.
func typeOf(raw []byte) string {
	if len(raw) == 0 {
		return "missing"
	}
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}
