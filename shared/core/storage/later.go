package storage

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Later has the members of a record's JSON object that a newer release has written and this one does
// not know. This release keeps them when it writes the record. It does not keep unknown members of
// nested objects, so a new member must not stand there if an older release must keep it. A Later is
// never modified.
type Later map[string]json.RawMessage

// read decodes a record, and returns its unknown fields, nil if it has none.
func read(record []byte, into any) (Later, error) {
	strict := json.NewDecoder(bytes.NewReader(record))
	strict.DisallowUnknownFields()
	if strict.Decode(into) == nil {
		return nil, nil
	}
	// Unmarshal also returns the error of a broken record.
	if err := json.Unmarshal(record, into); err != nil {
		return nil, err
	}
	var all Later
	if err := json.Unmarshal(record, &all); err != nil {
		return nil, err
	}
	fields := reflect.TypeOf(into).Elem()
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		if name == "" {
			name = fields.Field(i).Name
		}
		delete(all, name)
	}
	if len(all) == 0 { // only members of nested objects are unknown, and those are not kept
		return nil, nil
	}
	return all, nil
}

// join adds the members in u to an encoded record. If err is not nil, it returns err.
func (u Later) join(record []byte, err error) ([]byte, error) {
	if err != nil || len(u) == 0 {
		return record, err
	}
	record = bytes.TrimSuffix(record, []byte("}"))
	for _, name := range slices.Sorted(maps.Keys(u)) {
		key, err := Marshal(name)
		if err != nil {
			return nil, err
		}
		record = slices.Concat(record, []byte(","), key, []byte(":"), u[name])
	}
	return append(record, '}'), nil
}
