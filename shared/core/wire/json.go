package wire

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// Lookup returns the value at a path of object keys, without the whitespace around it. Lookup
// returns nil if there is none. An empty path gives the whole value. The result aliases raw.
//
// If a key comes twice, the last one counts, as in JavaScript, Python and encoding/json, so that
// Dormouse checks the value that the server will use. The argument raw must be valid JSON, as
// after [Parse].
func Lookup(raw []byte, path ...string) json.RawMessage {
	start, end, ok := locate(raw, path)
	if !ok {
		return nil
	}
	return raw[start:end:end]
}

// Replace returns a copy of raw with another value at path. All other bytes stay the same. If
// the path is absent, Replace returns raw itself and false. Both raw and value must be valid
// JSON. Replace exchanges the value that [Lookup] finds.
func Replace(raw []byte, value json.RawMessage, path ...string) (out []byte, ok bool) {
	start, end, ok := locate(raw, path)
	if !ok {
		return raw, false
	}
	return slices.Concat(raw[:start], value, raw[end:]), true
}

// WithDescription returns an object, which must have a member, with another description. All other
// bytes stay the same.
func WithDescription(raw []byte, text string) json.RawMessage {
	value := AppendString(nil, text)
	if has, ok := Replace(raw, value, "description"); ok {
		return has
	}
	return slices.Concat([]byte(`{"description":`), value, []byte{','}, bytes.TrimLeft(raw, " \t\r\n")[1:])
}

// Compact returns raw on one line, as the stdio transport requires. If raw has no line break,
// Compact returns raw itself, and else a copy without the whitespace between tokens. Strings and
// digits stay as they are, and nothing is escaped. raw must be valid JSON.
func Compact(raw []byte) []byte {
	if bytes.IndexByte(raw, '\n') < 0 && bytes.IndexByte(raw, '\r') < 0 {
		return raw
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		switch {
		case isSpace(raw[i]):
			i++
		case raw[i] == '"':
			end := skipString(raw, i)
			out = append(out, raw[i:end]...)
			i = end
		default:
			out = append(out, raw[i])
			i++
		}
	}
	return out
}

// String decodes a JSON string. ok is false if raw is anything else.
func String(raw json.RawMessage) (s string, ok bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	inner := raw[1 : len(raw)-1]
	if raw[len(raw)-1] == '"' && bytes.IndexByte(inner, '\\') < 0 && bytes.IndexByte(inner, '"') < 0 && utf8.Valid(inner) {
		return string(inner), true
	}
	return unescape(raw)
}

// unescape is String's slow path. It is a separate function because its code would cost
// String an allocation.
func unescape(raw []byte) (s string, ok bool) {
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}

// AppendString appends s as a JSON string, without the escapes that are for HTML. It
// can encode every Go string: bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			coded, _ := encode(s) // a string always encodes
			return append(dst, coded...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}

// is reports whether a JSON token is the string want.
func is(token []byte, want string) bool {
	return len(token) >= 2 && token[0] == '"' && string(decoded(token)) == want
}

// locate finds the bounds of the value at path. It never reads out of bounds, even if
// raw is not JSON.
func locate(raw []byte, path []string) (start, end int, ok bool) {
	start = skipSpace(raw, 0)
	if start == len(raw) {
		return 0, 0, false
	}
	if len(path) == 0 {
		return start, skip(raw, start), true
	}
	for _, key := range path {
		if raw[start] != '{' {
			return 0, 0, false
		}
		if start, end, ok = find(raw, start+1, key); !ok {
			return 0, 0, false
		}
	}
	return start, end, true
}

// find returns the bounds of the value of the last member with this key. i is the index
// after the brace that opens the object.
func find(raw []byte, i int, key string) (start, end int, ok bool) {
	for {
		m, next, more := nextMember(raw, i)
		if !more {
			return start, end, ok
		}
		i = next
		if is(m.key, key) {
			start, end, ok = m.start, m.end, true
		}
	}
}

// member is one member of an object: its key with quotes, and the bounds of its
// value.
type member struct {
	key        []byte
	start, end int
}

// nextMember reads the member that begins at raw[i] or later. i is the index after an
// opening brace or after a value; next is the index after the member's value. ok is false
// at the end of the object.
func nextMember(raw []byte, i int) (m member, next int, ok bool) {
	i = skipSpace(raw, i)
	if i < len(raw) && raw[i] == ',' {
		i = skipSpace(raw, i+1)
	}
	if i >= len(raw) || raw[i] != '"' {
		return member{}, i, false
	}
	end := skipString(raw, i)
	if end-i < 2 {
		return member{}, i, false
	}
	m.key = raw[i:end:end]
	i = skipSpace(raw, end)
	if i >= len(raw) || raw[i] != ':' {
		return member{}, i, false
	}
	m.start = skipSpace(raw, i+1)
	m.end = skip(raw, m.start)
	return m, m.end, m.end > m.start
}

// skip returns the index after the value that begins at raw[i]. It assumes that raw is
// JSON, so it looks only at brackets and quotes. On other bytes it stays within bounds.
func skip(raw []byte, i int) int {
	if i >= len(raw) {
		return len(raw)
	}
	switch raw[i] {
	case '"':
		return skipString(raw, i)
	case '{', '[':
		return skipNested(raw, i)
	}
	for ; i < len(raw); i++ {
		if c := raw[i]; c == ',' || c == '}' || c == ']' || isSpace(c) {
			return i
		}
	}
	return i
}

func skipNested(raw []byte, i int) int {
	for depth := 0; i < len(raw); {
		switch raw[i] {
		case '"':
			i = skipString(raw, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return i
}

// skipString returns the index after the string that begins at raw[i].
func skipString(raw []byte, i int) int {
	for j := i + 1; ; {
		n := bytes.IndexByte(raw[j:], '"')
		if n < 0 {
			return len(raw)
		}
		j += n
		// The quote is escaped when an odd number of backslashes stands before it.
		k := j
		for k > i+1 && raw[k-1] == '\\' {
			k--
		}
		if j++; (j-1-k)%2 == 0 {
			return j
		}
	}
}

func skipSpace(raw []byte, i int) int {
	for i < len(raw) && isSpace(raw[i]) {
		i++
	}
	return i
}

func trim(raw []byte) []byte { return slices.Clip(bytes.Trim(raw, " \n\t\r")) }

func isSpace(c byte) bool {
	return c == ' ' || c == '\n' || c == '\t' || c == '\r'
}
