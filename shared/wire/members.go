package wire

import "encoding/json"

// Members calls each for every member of an object, in order, with its key and its
// value, which alias raw, until it returns false. ok is false if raw is no object, or a
// key has an escape; raw must be valid JSON besides, as for [Lookup].
func Members(raw []byte, each func(key string, value json.RawMessage) bool) (ok bool) {
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
		key, ok := String(m.key)
		if !ok {
			return false
		}
		if !each(key, raw[m.start:m.end:m.end]) {
			return true
		}
	}
}
