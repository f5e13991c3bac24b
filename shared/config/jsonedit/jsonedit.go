// Package jsonedit changes single members of a JSON file with comments, as people and editors keep
// it. It replaces only the bytes of the change: elsewhere comments, order, line ends and the spelling
// of numbers stay. Callers read and write the file.
//
// The package accepts the additions of editors to JSON: comments, and a comma after the last
// element. A path is the list of names that lead from the outermost object to a member.
package jsonedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// Encode returns a value as JSON, without escaping <, > and &.
func Encode(v any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("jsonedit: " + err.Error()) // callers pass strings, lists of strings, and JSON that was parsed before
	}
	return bytes.TrimSpace(out.Bytes())
}

// document is a parsed text.
type document struct {
	root hujson.Value // with LF as line ends, and one more behind the text
	crlf bool         // the line ends of the text are CRLF
	unit string       // one step of indentation
}

// open parses a text. An empty text counts as an empty object. If a text is on one line
// and has no comments, open spreads it over several lines.
func open(text []byte) (d *document, err error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	d = &document{crlf: bytes.Contains(text, []byte("\r\n")), unit: "  "}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	if d.root, err = parse(text); err != nil {
		return nil, err
	}
	if !bytes.Contains(bytes.TrimSpace(text), []byte("\n")) && d.root.IsStandard() {
		if d.root, err = parse([]byte(d.format(d.root, "", true) + "\n")); err != nil {
			return nil, err
		}
	}
	if o, ok := d.root.Value.(*hujson.Object); ok && len(o.Members) > 0 {
		if first, ok := alone(o.Members[0].Name); ok && first != "" {
			d.unit = first
		}
	}
	return d, nil
}

func parse(text []byte) (hujson.Value, error) {
	// hujson takes a comment for unfinished if the text ends right after it.
	root, err := hujson.Parse(append(slices.Clone(text), '\n'))
	if err != nil {
		return root, errors.New("the file is not JSON") // hujson's error may quote a value
	}
	return root, nil
}

// text returns the text of the document, and checks that it is JSON.
func (d *document) text() ([]byte, error) {
	text := bytes.TrimSuffix(d.root.Pack(), []byte("\n"))
	if d.crlf {
		text = bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
	}
	_, err := parse(text)
	return text, err
}

// Get returns the value of a member as JSON without comments. ok is false if there is
// none.
func Get(text []byte, path ...string) (value []byte, ok bool, err error) {
	d, err := open(text)
	if err != nil {
		return nil, false, err
	}
	at, found, err := d.follow(path)
	if err != nil || found < len(path) {
		return nil, false, err
	}
	v := at.value.Clone()
	v.Standardize()
	v.Minimize()
	return v.Pack(), true, nil
}

// Members calls fn for each member of an object, in order. For a repeated key, it calls fn once,
// with the last value.
func Members(text []byte, fn func(key string, value json.RawMessage) error) error {
	root, err := parse(text)
	o, ok := root.Value.(*hujson.Object)
	if err != nil || !ok {
		return errors.New(`write a JSON object: {"command": "…", "args": […]}`)
	}
	root.Standardize()
	var keys []string
	values := map[string]json.RawMessage{}
	for _, m := range o.Members {
		key := m.Name.Value.(hujson.Literal).String() //nolint:forcetypeassert // hujson parses only literals as names
		if _, again := values[key]; !again {
			keys = append(keys, key)
		}
		values[key] = bytes.TrimSpace(m.Value.Pack())
	}
	for _, key := range keys {
		if err := fn(key, values[key]); err != nil {
			return err
		}
	}
	return nil
}

// Set returns text with the member set to value, which is JSON. Set makes missing objects on the
// path. A new member comes last in its object. If a part of the path is no object, or comes
// twice, the error names that part.
func Set(text, value []byte, path ...string) ([]byte, error) {
	d, err := open(text)
	if err != nil {
		return nil, err
	}
	want, err := hujson.Parse(value)
	if err != nil {
		return nil, fmt.Errorf("value of %s: %w", strings.Join(path, "."), err)
	}
	at, found, err := d.follow(path)
	if err != nil {
		return nil, err
	}
	if found < len(path) {
		for _, missing := range slices.Backward(path[found+1:]) {
			want = hujson.Value{Value: &hujson.Object{Members: []hujson.ObjectMember{{Name: hujson.Value{Value: hujson.String(missing)}, Value: want}}}}
		}
		if err := d.insert(at, path[:found+1], want); err != nil {
			return nil, err
		}
		return d.text()
	}
	was := hujson.Value{Value: at.value.Value}
	at.value.Value = hujson.Literal(d.format(want, at.indent, at.multi || strings.Contains(was.String(), "\n")))
	return d.text()
}

// SetElement returns text with an element of the array at a path set to value, which is JSON.
// Comments in the array stay. The error names what is not there.
func SetElement(text, value []byte, index int, path ...string) ([]byte, error) {
	d, err := open(text)
	if err != nil {
		return nil, err
	}
	at, found, err := d.follow(path)
	if err != nil {
		return nil, err
	}
	if found < len(path) {
		return nil, fmt.Errorf("there is no %s", strings.Join(path[:found+1], "."))
	}
	list, ok := at.value.Value.(*hujson.Array)
	if !ok || index >= len(list.Elements) {
		return nil, fmt.Errorf("%s has no element %d", strings.Join(path, "."), index)
	}
	list.Elements[index].Value = hujson.Literal(value)
	return d.text()
}

// Delete returns text without the member, and without comments that belong to it: right above it, and
// behind it on its line. Other comments stay. If there is no such member, text stays unchanged.
func Delete(text []byte, path ...string) ([]byte, error) {
	d, err := open(text)
	if err != nil {
		return nil, err
	}
	_, found, err := d.follow(path)
	switch {
	case err != nil:
		return nil, err
	case found < len(path) || found == 0:
		return text, nil
	}
	in, _, err := d.follow(path[:len(path)-1])
	if err != nil {
		return nil, err
	}
	o := in.value.Value.(*hujson.Object) //nolint:forcetypeassert // the member is in it
	comma := lastComma(o)
	if err := d.patch("remove", path, nil); err != nil {
		return nil, err
	}
	if n := len(o.Members); n > 0 {
		o.Members[n-1].Value.AfterExtra = comma // hujson would leave the comma that separated the last two
	}
	return d.text()
}

// patch applies an operation of JSON Patch (RFC 6902), which keeps comments.
func (d *document) patch(op string, path []string, value json.RawMessage) error {
	pointer := ""
	for _, name := range path {
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	}
	return d.root.Patch(Encode([]any{struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value,omitempty"`
	}{op, pointer, value}}))
}

// place is where a value is in a document.
type place struct {
	value  *hujson.Value
	indent string // the blanks at the beginning of the value's line
	multi  bool   // the value, or the member that has it, begins a line
}

// follow follows a path from the root as far as it exists. The result found is how many names of
// the path exist, and at is the place of the value of the last one.
func (d *document) follow(path []string) (at place, found int, err error) {
	at = place{value: &d.root}
	for i, name := range path {
		o, index, err := member(*at.value, path[:i], name)
		if err != nil || index < 0 {
			return at, i, err
		}
		m := &o.Members[index]
		at.value, at.multi = &m.Value, false
		for _, v := range []hujson.Value{m.Name, m.Value} {
			if indent, ok := alone(v); ok {
				at.indent, at.multi = indent, true
			}
		}
	}
	return at, len(path), nil
}

// member finds a member of v by its name. The argument path is the path of v. The result at is
// the member's index, or -1 if there is none.
func member(v hujson.Value, path []string, name string) (o *hujson.Object, at int, err error) {
	where := "the file"
	if len(path) > 0 {
		where = strings.Join(path, ".")
	}
	o, ok := v.Value.(*hujson.Object)
	if !ok {
		return nil, 0, fmt.Errorf("%s is not an object", where)
	}
	at = -1
	for i, m := range o.Members {
		if l, ok := m.Name.Value.(hujson.Literal); ok && l.String() == name {
			if at >= 0 {
				return nil, 0, fmt.Errorf("%s has %q twice: remove one", where, name)
			}
			at = i
		}
	}
	return o, at, nil
}

// insert adds the member at a path at the end of the object at a place.
func (d *document) insert(at place, path []string, value hujson.Value) error {
	o := at.value.Value.(*hujson.Object) //nolint:forcetypeassert // follow has looked for a member of it
	indent, multi, comma := at.indent+d.unit, true, lastComma(o)
	if n := len(o.Members); n > 0 {
		indent, multi = alone(o.Members[n-1].Name)
	}
	if err := d.patch("add", path, value.Pack()); err != nil {
		return err
	}
	added := &o.Members[len(o.Members)-1]
	added.Value = hujson.Value{BeforeExtra: hujson.Extra(" "), Value: hujson.Literal(d.format(value, indent, multi)), AfterExtra: comma}
	if !multi {
		added.Name.BeforeExtra = hujson.Extra(" ")
		return nil
	}
	added.Name.BeforeExtra = append(bytes.TrimRight(added.Name.BeforeExtra, "\n"), "\n"+indent...)
	if !bytes.Contains(o.AfterExtra, []byte("\n")) {
		o.AfterExtra = append(bytes.TrimRight(o.AfterExtra, " \t"), "\n"+at.indent...)
	}
	return nil
}

// lastComma returns AfterExtra for the last member of an object that has a comma behind it as o has:
// nil for none.
func lastComma(o *hujson.Object) hujson.Extra {
	if n := len(o.Members); n > 0 && o.Members[n-1].Value.AfterExtra != nil {
		return hujson.Extra{}
	}
	return nil
}

// alone returns the blanks before a value on its line. ok is false on the first line, and if other
// characters stand before the value on its line.
func alone(v hujson.Value) (indent string, ok bool) {
	begin := bytes.LastIndexByte(v.BeforeExtra, '\n') + 1
	indent = string(v.BeforeExtra[begin:])
	return indent, begin > 0 && strings.Trim(indent, " \t") == ""
}

// wide is the longest array that stays on one line, in bytes.
const wide = 100

// format formats a value on one line or, if multi is set, over several lines with indentation, where
// an array of few plain values stays on one. format drops comments.
func (d *document) format(v hujson.Value, indent string, multi bool) string {
	var items []string
	open, closing := "{", "}"
	inner := indent + d.unit
	switch v := v.Value.(type) {
	case hujson.Literal:
		return string(v)
	case *hujson.Object:
		for _, m := range v.Members {
			items = append(items, d.format(m.Name, "", false)+": "+d.format(m.Value, inner, multi))
		}
	case *hujson.Array:
		plain := true
		open, closing = "[", "]"
		for _, item := range v.Elements {
			_, literal := item.Value.(hujson.Literal)
			plain = plain && literal
			items = append(items, d.format(item, inner, multi))
		}
		multi = multi && (!plain || len(strings.Join(items, ", "))+2 > wide)
	}
	if !multi || len(items) == 0 {
		return open + strings.Join(items, ", ") + closing
	}
	return open + "\n" + inner + strings.Join(items, ",\n"+inner) + "\n" + indent + closing
}
