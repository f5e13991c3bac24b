package bridge

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// object is a JSON object taken apart. Members keep their order, and values their bytes.
type object []member

type member struct {
	key   string
	value json.RawMessage
}

// objectOf reads an object; ok is false for anything else. The values are slices of raw.
func objectOf(raw json.RawMessage) (o object, ok bool) {
	if !isObject(raw) || !wire.Valid(raw) {
		return nil, false
	}
	for key, value := range wire.Members(raw) {
		o = append(o, member{key, value})
	}
	return o, true
}

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// get returns the value of the last member with this key, or nil. All readers of JSON in this
// module must use the last of several members with one key.
func (o object) get(key string) json.RawMessage {
	for _, m := range slices.Backward(o) {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// with returns the object with value as its only member of this key. The member takes the place of
// the first one with the key, or is added at the end.
func (o object) with(key string, value json.RawMessage) object {
	at := slices.IndexFunc(o, func(m member) bool { return m.key == key })
	rest := o.without(key)
	if at < 0 {
		at = len(rest)
	}
	return slices.Insert(rest, at, member{key, value})
}

func (o object) without(keys ...string) object {
	return slices.DeleteFunc(slices.Clone(o), func(m member) bool { return slices.Contains(keys, m.key) })
}

func (o object) encode() json.RawMessage {
	size := 2
	for _, m := range o {
		size += len(m.key) + len(m.value) + 4
	}
	out := append(make([]byte, 0, size), '{')
	for i, m := range o {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(wire.AppendString(out, m.key), ':'), m.value...)
	}
	return append(out, '}')
}

// text returns a string as JSON, without the escapes that are for HTML.
func text(s string) json.RawMessage { return wire.AppendString(make([]byte, 0, len(s)+2), s) }

func texts(list []string) json.RawMessage {
	values := make([]json.RawMessage, len(list))
	for i, s := range list {
		values[i] = text(s)
	}
	return wire.Array(values)
}

func number(n int64) json.RawMessage { return strconv.AppendInt(nil, n, 10) }

// canonical returns the same bytes for JSON that differs only in white space and in the
// order of members. Numbers keep their digits.
func canonical(raw json.RawMessage) []byte {
	out, err := json.Marshal(numbers(raw))
	if err != nil { // cannot happen: numbers returns what it has decoded from JSON
		panic("bridge: JSON that cannot be encoded: " + err.Error())
	}
	return out
}

// numbers decodes any JSON. A number becomes a json.Number, which keeps its digits.
func numbers(raw json.RawMessage) any {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	_ = dec.Decode(&v) // v stays nil for malformed JSON
	return v
}
