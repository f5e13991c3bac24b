package wire

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// Header names. HTTP compares them without case.
const (
	// HeaderSessionID names the session, in visible ASCII (legacy era). Versions from
	// 2025-11-25 on spell it MCP-Session-Id.
	HeaderSessionID = "Mcp-Session-Id"
	// HeaderProtocolVersion is on every request from 2025-06-18 on. A request without
	// it counts as 2025-03-26 if nothing else is known.
	HeaderProtocolVersion = "MCP-Protocol-Version"
	// HeaderLastEventID is the cursor of a client that resumes a stream.
	HeaderLastEventID = "Last-Event-ID"
	// HeaderMethod repeats the method of the body (modern era).
	HeaderMethod = "Mcp-Method"
	// HeaderName repeats params.name, params.uri or params.taskId (modern era); see
	// [DecodeHeaderValue].
	HeaderName = "Mcp-Name"
	// HeaderIdempotencyKey has the key of a tools/call, alone or in double quotes (an IETF draft).
	HeaderIdempotencyKey = "Idempotency-Key"
	// HeaderParamPrefix begins the headers that repeat tool arguments marked
	// x-mcp-header (modern era); see [DecodeHeaderValue].
	HeaderParamPrefix = "Mcp-Param-"
)

// Media types of the bodies.
const (
	MediaJSON = "application/json"  // one message, or a batch
	MediaSSE  = "text/event-stream" // events, see [AppendSSE]
)

// DecodeHeaderValue decodes an Mcp-Name or Mcp-Param-* value: plain visible ASCII with inner
// blanks, or =?base64?…?= around the standard base64 of UTF-8 text. If ok is false, the caller
// refuses the value with [CodeHeaderMismatch] (MCP 2026-07-28, basic/transports, "Value
// Encoding").
func DecodeHeaderValue(value string) (decoded string, ok bool) {
	const open, shut = "=?base64?", "?="
	if inner, found := strings.CutPrefix(value, open); found {
		if inner, found = strings.CutSuffix(inner, shut); found {
			text, err := base64.StdEncoding.DecodeString(inner)
			return string(text), err == nil && utf8.Valid(text)
		}
	}
	for i := range len(value) {
		if c := value[i]; c != '\t' && (c < ' ' || c > '~') {
			return "", false
		}
	}
	return value, strings.Trim(value, " \t") == value
}

// EncodeHeaderValue encodes text for an Mcp-Name or Mcp-Param-* header, as
// [DecodeHeaderValue] decodes it.
func EncodeHeaderValue(text string) string {
	if plain, ok := DecodeHeaderValue(text); ok && plain == text {
		return text
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
}
