package wire

import "encoding/json"

// Members calls each for every member of an object, in order, with its key and its
// value, which alias raw, until it returns false. ok is false if raw is no object; raw
// must be valid JSON besides, as for [Lookup].
func Members(raw []byte, each func(key string, value json.RawMessage) bool) (ok bool) {
	sound := true
	ok = Tokens(raw, func(token []byte, value json.RawMessage) bool {
		var key string
		key, sound = String(token)
		return sound && each(key, value)
	})
	return ok && sound
}

// Tokens is [Members] for who only compares keys: each is given the key as it is
// written, with its quotes, and nothing is allocated. ok is false if raw is no object.
func Tokens(raw []byte, each func(key []byte, value json.RawMessage) bool) (ok bool) {
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
			return true
		}
	}
}

// Elements calls each for every element of an array, in order, which alias raw, until it
// returns false. all is true if raw is an array and each was true of all; raw must be
// valid JSON, as for [Lookup].
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
