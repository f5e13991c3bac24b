package wire

import (
	"encoding/json"
	"iter"
)

// Members returns the keys and values of the members of an object, in order. The values alias
// raw, which must be valid JSON, as for [Lookup]. Anything but an object has no members.
func Members(raw []byte) iter.Seq2[string, json.RawMessage] {
	return func(yield func(key string, value json.RawMessage) bool) {
		i := skipSpace(raw, 0)
		if i >= len(raw) || raw[i] != '{' {
			return
		}
		for m, next, ok := nextMember(raw, i+1); ok; m, next, ok = nextMember(raw, next) {
			key, valid := String(m.key)
			if !valid || !yield(key, raw[m.start:m.end:m.end]) {
				return
			}
		}
	}
}

// Elements returns the elements of an array, in order. They alias raw, which must be valid JSON.
// Anything but an array has no elements.
func Elements(raw []byte) iter.Seq[json.RawMessage] {
	return func(yield func(element json.RawMessage) bool) {
		i := skipSpace(raw, 0)
		if i >= len(raw) || raw[i] != '[' {
			return
		}
		for i = skipSpace(raw, i+1); i < len(raw) && raw[i] != ']'; {
			end := skip(raw, i)
			if end == i || !yield(raw[i:end:end]) {
				return
			}
			if i = skipSpace(raw, end); i < len(raw) && raw[i] == ',' {
				i = skipSpace(raw, i+1)
			}
		}
	}
}

// Array returns the JSON array of some values.
func Array[T ~[]byte](values []T) []byte {
	size := 2 + len(values)
	for _, v := range values {
		size += len(v)
	}
	out := append(make([]byte, 0, size), '[')
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, v...)
	}
	return append(out, ']')
}

// ReplaceElements returns a copy of raw in which the function change has replaced each element of the
// array at path. If there is no array at path, it returns raw itself.
func ReplaceElements(raw []byte, change func(element []byte) []byte, path ...string) []byte {
	list := Lookup(raw, path...)
	if len(list) == 0 || list[0] != '[' {
		return raw
	}
	var changed [][]byte
	for element := range Elements(list) {
		changed = append(changed, change(element))
	}
	raw, _ = Replace(raw, Array(changed), path...)
	return raw
}

// Valid reports whether raw is one JSON value in UTF-8, nested no deeper than messages
// may be.
func Valid(raw []byte) bool { return check(raw) == nil }
