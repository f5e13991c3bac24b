package quota

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// off is written in place of a limit to remove the limit.
const off = "off"

// Limits are the limits in a servers file, or those of a tenant. A zero field is no limit.
type Limits struct {
	Principal  Rate    `json:"principal,omitzero"`   // calls of tools by each principal
	Concurrent int     `json:"concurrent,omitempty"` // calls of a principal in flight
	Boxes      int     `json:"boxes,omitempty"`      // boxes of a tenant that run at the same time
	MonthUSD   float64 `json:"month_usd,omitempty"`  // what a tenant may spend in a month (UTC), at the prices of AWS
}

// object is a JSON object whose members are not decoded. null stands for "off".
type object map[string]json.RawMessage

// Read reads the limits in a servers file. If section is nil, on is false, and nothing is limited.
// Errors name the key.
func Read(section []byte) (limits Limits, on bool, err error) {
	if section == nil {
		return Limits{}, false, nil
	}
	o, err := readObject(section)
	if err != nil {
		return Limits{}, false, fmt.Errorf("limits: %w", err)
	}
	limits, err = o.limits()
	return limits, true, err
}

func readObject(text []byte) (object, error) {
	var o object
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&o); err != nil || o == nil {
		return nil, errors.New("want a JSON object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is text after the JSON object; remove it")
	}
	return o, nil
}

// over returns o, with the members of the argument own added or replaced.
func (o object) over(own object) object {
	all := object{}
	maps.Copy(all, o)
	maps.Copy(all, own)
	return all
}

func (o object) text() []byte {
	text, err := json.Marshal(o)
	if err != nil {
		panic("quota: " + err.Error()) // cannot fail: all members were read as JSON
	}
	return text
}

func (l Limits) object() object {
	text, err := json.Marshal(l)
	if err != nil {
		panic("quota: " + err.Error()) // checked numbers and strings always marshal
	}
	o, _ := readObject(text) // cannot fail: text is a JSON object
	return o
}

func limitNames() (names []string) {
	for field := range reflect.TypeFor[Limits]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// known returns the members of o that are limits. Limits that an operator set in an earlier
// release may have other members.
func (o object) known() object {
	of := object{}
	for _, name := range limitNames() {
		if value, ok := o[name]; ok {
			of[name] = value
		}
	}
	return of
}

func (o object) limits() (Limits, error) {
	var l Limits
	d := json.NewDecoder(bytes.NewReader(o.text()))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
			return Limits{}, fmt.Errorf("limits: there is no limit %s; the limits are %s", name, strings.Join(limitNames(), ", "))
		}
		return Limits{}, fmt.Errorf("limits: %s", strings.TrimPrefix(wire.WrongShape(err).Error(), "json: "))
	}
	for key, n := range map[string]int{"concurrent": l.Concurrent, "boxes": l.Boxes} {
		if n < 0 || n > maxCalls {
			return Limits{}, fmt.Errorf("limits: %s is %d; want a number above 0, or null for no limit", key, n)
		}
	}
	if l.Concurrent > maxSlots {
		return Limits{}, fmt.Errorf("limits: concurrent is %d; want at most %d", l.Concurrent, maxSlots)
	}
	if n := l.MonthUSD; !(n >= 0 && n <= 1e9) || n > 0 && n < 1e-6 {
		return Limits{}, fmt.Errorf("limits: month_usd is %v; want a number above 0, or null for no limit", n)
	}
	return l, nil
}

// fromFile is written in place of a limit to return to the limit of the servers file.
const fromFile = "file"

// withoutFile removes the members whose value is fromFile.
func (o object) withoutFile() object {
	maps.DeleteFunc(o, func(_ string, value json.RawMessage) bool {
		var text string
		return json.Unmarshal(value, &text) == nil && text == fromFile
	})
	return o
}

// InForce returns the limits of a tenant: its own ones, and the limits of the servers file where it
// has none. Errors are as for [Read].
func InForce(section, own []byte) (Limits, error) {
	file, _, err := Read(section)
	if err != nil || len(own) == 0 {
		return file, err
	}
	return file.under(own)
}

func (l Limits) under(own []byte) (Limits, error) {
	more, err := readObject(own)
	if err != nil {
		return Limits{}, err
	}
	return l.object().over(more.known()).limits()
}

// Change turns words of the form KEY=VALUE into the JSON for [Set]. A key is one of
// [Limits]. A value may also be "off" for no limit, or "file" for the limit of the servers file.
//
// Errors: Invalid for a word that has no "=".
func Change(words []string) ([]byte, error) {
	change := object{}
	for _, word := range words {
		key, value, ok := strings.Cut(word, "=")
		if !ok || key == "" || value == "" {
			return nil, storage.Errorf(storage.Invalid, "%q sets nothing; write KEY=VALUE, such as month_usd=20 or principal=60/m", wire.Clip(word))
		}
		change[key] = encoded(value)
	}
	return change.text(), nil
}

// encoded returns a word as JSON: a number, null for "off", or a text.
func encoded(word string) json.RawMessage {
	if word == off {
		return json.RawMessage("null")
	}
	if _, err := strconv.ParseFloat(word, 64); err == nil && json.Valid([]byte(word)) {
		return json.RawMessage(word)
	}
	text, err := json.Marshal(word)
	if err != nil {
		panic("quota: " + err.Error()) // strings always marshal
	}
	return text
}
