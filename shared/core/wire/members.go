package wire

import "encoding/json"

// Members calls each for the members of an object, in order, with key and value, until
// each returns false. The values alias raw. all is true if raw is an object and each
// returned true for all its members. raw must be valid JSON, as for [Lookup].
func Members(raw []byte, each func(key string, value json.RawMessage) bool) (all bool) {
	return Tokens(raw, func(token []byte, value json.RawMessage) bool {
		key, ok := String(token)
		return ok && each(key, value)
	})
}

// Tokens is [Members] for callers that only compare keys. each gets the key as it is
// written, with its quotes, so Tokens allocates nothing.
func Tokens(raw []byte, each func(key []byte, value json.RawMessage) bool) (all bool) {
	i := skipSpace(raw, 0)
	if i >= len(raw) || raw[i] != '{' {
		return false
	}
	for i++; ; {
		m, next, more := nextMember(raw, i)
		if !more {
			return true
		}
		i = next
		if !each(m.key, raw[m.start:m.end:m.end]) {
			return false
		}
	}
}

// Elements is [Members] for the elements of an array.
func Elements(raw []byte, each func(value json.RawMessage) bool) (all bool) {
	i := skipSpace(raw, 0)
	if i >= len(raw) || raw[i] != '[' {
		return false
	}
	for i = skipSpace(raw, i+1); i < len(raw) && raw[i] != ']'; {
		end := skip(raw, i)
		if end == i || !each(raw[i:end:end]) {
			return false
		}
		if i = skipSpace(raw, end); i < len(raw) && raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return true
}

// Valid reports whether raw is one JSON value in UTF-8, nested no deeper than messages
// may be.
func Valid(raw []byte) bool { return check(raw) == nil }
