package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Code is a JSON-RPC error code.
type Code int

const (
	// CodeParse: the bytes are not JSON.
	CodeParse Code = -32700
	// CodeInvalidRequest: the text is JSON, but no message that is allowed here.
	CodeInvalidRequest Code = -32600
	// CodeMethodNotFound: the method is unknown or not offered.
	CodeMethodNotFound Code = -32601
	// CodeInvalidParams: the method's params are wrong; in 2026-07-28 also an
	// unknown resource, tool or prompt.
	CodeInvalidParams Code = -32602
	// CodeInternal: the server failed.
	CodeInternal Code = -32603

	// CodeServer is the first of the codes that JSON-RPC leaves to implementations. MCP
	// gives it no meaning; clients show its message.
	CodeServer Code = -32000
	// CodeSessionNotFound is in no MCP version. Servers send it with 404 for a session
	// that has ended. Clients act on the status, not on the code.
	CodeSessionNotFound Code = -32001
	// CodeResourceNotFound: unknown resource, in versions up to 2025-11-25.
	CodeResourceNotFound Code = -32002

	// CodeOutcomeUnknown: it is unknown whether the request was executed. It will not be
	// executed from now on.
	CodeOutcomeUnknown Code = -32010

	// CodeHeaderMismatch: a header is missing or differs from the body
	// (MCP 2026-07-28).
	CodeHeaderMismatch Code = -32020
	// CodeMissingCapability: the request needs a capability that its client did not
	// declare. data.requiredCapabilities names it (MCP 2026-07-28).
	CodeMissingCapability Code = -32021
	// CodeUnsupportedVersion: this endpoint does not support the version. data.supported
	// lists the versions that it supports (MCP 2026-07-28).
	CodeUnsupportedVersion Code = -32022
	// CodeURLElicitation: the client must send its user to the URLs in
	// data.elicitations first (MCP 2025-11-25 only).
	CodeURLElicitation Code = -32042
	// CodeCancelled: the request was cancelled before it had an answer. MCP gives a cancelled
	// request no response: this code is for the error that ends the request in the session's
	// log.
	CodeCancelled Code = -32800
)

// Error is a JSON-RPC error object. Its text is for the sender of the refused message, and
// contains no secrets and no causes.
type Error struct {
	Code    Code
	Message string
	// Data is encoded as JSON into the member "data". nil leaves the member out.
	Data any
}

// Error returns the message and the code.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (json-rpc %d)", e.Message, int(e.Code))
}

// ErrorResponse returns {"jsonrpc":"2.0","id":…,"error":{…}}. A nil id becomes null. Data that
// cannot be encoded is left out.
func ErrorResponse(id json.RawMessage, e *Error) []byte {
	out := appendID(make([]byte, 0, 96+len(id)+len(e.Message)), id)
	out = fmt.Appendf(out, `,"error":{"code":%d,"message":`, int(e.Code))
	out = AppendString(out, e.Message)
	if e.Data != nil {
		if data, err := encode(e.Data); err == nil {
			out = append(append(out, `,"data":`...), data...)
		}
	}
	return append(out, "}}"...)
}

// ResultResponse returns {"jsonrpc":"2.0","id":…,"result":…} with the bytes of result
// unchanged. A nil result becomes {}, MCP's empty result.
func ResultResponse(id, result json.RawMessage) []byte {
	if result == nil {
		result = json.RawMessage("{}")
	}
	out := appendID(make([]byte, 0, 40+len(id)+len(result)), id)
	out = append(append(out, `,"result":`...), result...)
	return append(out, '}')
}

// NewRequest returns a request with the bytes of params unchanged. nil params are left
// out.
func NewRequest(id json.RawMessage, method string, params json.RawMessage) []byte {
	out := appendID(make([]byte, 0, 56+len(id)+len(method)+len(params)), id)
	return appendCall(append(out, ','), method, params)
}

// NewNotification returns a notification with the bytes of params unchanged. nil params
// are left out.
func NewNotification(method string, params json.RawMessage) []byte {
	out := append(make([]byte, 0, 48+len(method)+len(params)), `{"jsonrpc":"2.0",`...)
	return appendCall(out, method, params)
}

// appendID begins a message, up to and including its id.
func appendID(dst []byte, id json.RawMessage) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	return append(append(dst, `{"jsonrpc":"2.0","id":`...), id...)
}

func appendCall(dst []byte, method string, params json.RawMessage) []byte {
	dst = AppendString(append(dst, `"method":`...), method)
	if params != nil {
		dst = append(append(dst, `,"params":`...), params...)
	}
	return append(dst, '}')
}

// encode is json.Marshal without the escaping of <, > and &, which would only change
// the text.
func encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
