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

// document is a parsed text. Offsets in the field root refer to the field text.
type document struct {
	text []byte // without a byte order mark
	root hujson.Value
	line string // the line end that the text uses
	unit string // one step of indentation
}

// open parses a text. An empty text counts as an empty object. If a text is on one line
// and has no comments, open spreads it over several lines.
func open(text []byte) (*document, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	d := &document{text: slices.Clone(text), line: "\n", unit: "  "}
	if err := d.parse(); err != nil {
		return nil, err
	}
	if !bytes.Contains(bytes.TrimSpace(text), []byte("\n")) && d.root.IsStandard() {
		d.text = append([]byte(d.spread(d.root, "")), '\n')
		if err := d.parse(); err != nil {
			return nil, err
		}
	}
	if bytes.Contains(text, []byte("\r\n")) {
		d.line = "\r\n"
	}
	if o, ok := d.root.Value.(*hujson.Object); ok && len(o.Members) > 0 {
		if first, ok := d.alone(o.Members[0].Name.StartOffset); ok && first != "" {
			d.unit = first
		}
	}
	return d, nil
}

func (d *document) parse() error {
	// hujson takes a comment for unfinished if the text ends right after it.
	root, err := hujson.Parse(append(slices.Clone(d.text), '\n'))
	if err != nil {
		return errors.New("the file is not JSON") // hujson's error may quote a value
	}
	d.root = root
	return nil
}

// Get returns the value of a member as JSON without comments. ok is false if there is
// none.
func Get(text []byte, path ...string) (value []byte, ok bool, err error) {
	d, err := open(text)
	if err != nil {
		return nil, false, err
	}
	v, _, found, err := d.follow(path)
	if err != nil || found < len(path) {
		return nil, false, err
	}
	v = v.Clone()
	v.Standardize()
	v.Minimize()
	return v.Pack(), true, nil
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
	v, m, found, err := d.follow(path)
	if err != nil {
		return nil, err
	}
	if found < len(path) {
		for _, missing := range slices.Backward(path[found+1:]) {
			want = hujson.Value{Value: &hujson.Object{Members: []hujson.ObjectMember{{Name: hujson.Value{Value: hujson.String(missing)}, Value: want}}}}
		}
		return d.insert(v, path[found], want)
	}
	ownLine := false
	if found > 0 {
		_, ownLine = d.alone(m.object().Members[m.at].Name.StartOffset)
	}
	_, alone := d.alone(v.StartOffset)
	put := compact(want)
	if alone || ownLine || bytes.Contains(d.text[v.StartOffset:v.EndOffset], []byte("\n")) {
		put = d.spread(want, d.indentation(v.StartOffset))
	}
	return d.splice(v.StartOffset, v.EndOffset, put)
}

// SetElement returns text with an element of the array at a path set to value, which is JSON.
// Comments in the array stay. The error names what is not there.
func SetElement(text, value []byte, at int, path ...string) ([]byte, error) {
	d, err := open(text)
	if err != nil {
		return nil, err
	}
	v, _, found, err := d.follow(path)
	if err != nil {
		return nil, err
	}
	if found < len(path) {
		return nil, fmt.Errorf("there is no %s", strings.Join(path[:found+1], "."))
	}
	list, ok := v.Value.(*hujson.Array)
	if !ok || at >= len(list.Elements) {
		return nil, fmt.Errorf("%s has no element %d", strings.Join(path, "."), at)
	}
	return d.splice(list.Elements[at].StartOffset, list.Elements[at].EndOffset, string(value))
}

// Delete returns text without the member, and without a comment after it on the same line.
// Other comments stay. If there is no such member, text stays unchanged.
func Delete(text []byte, path ...string) ([]byte, error) {
	d, err := open(text)
	if err != nil {
		return nil, err
	}
	_, m, found, err := d.follow(path)
	switch {
	case err != nil:
		return nil, err
	case found < len(path) || found == 0:
		return text, nil
	}
	return d.remove(m)
}

// place is a member of an object.
type place struct {
	in hujson.Value // the object
	at int          // index of the member
}

func (p place) object() *hujson.Object { return p.in.Value.(*hujson.Object) }

// follow follows a path from the root as far as it exists. The result found is how many names of
// the path exist. The results v and last are the value and the member of the last name that
// exists.
func (d *document) follow(path []string) (v hujson.Value, last place, found int, err error) {
	v = d.root
	for i, name := range path {
		o, at, err := member(v, path[:i], name)
		if err != nil || at < 0 {
			return v, last, i, err
		}
		v, last = o.Members[at].Value, place{v, at}
	}
	return v, last, len(path), nil
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

// insert adds a member at the end of the object v.
func (d *document) insert(v hujson.Value, name string, value hujson.Value) ([]byte, error) {
	o := place{in: v}.object()
	closing := v.EndOffset - 1
	outer := d.indentation(v.StartOffset)
	key := hujson.String(name)
	if len(o.Members) == 0 {
		inside := strings.TrimRight(string(d.text[v.StartOffset+1:closing]), " \t\r\n")
		indent := outer + d.unit
		return d.splice(v.StartOffset+1, closing, inside+d.line+indent+string(key)+": "+d.spread(value, indent)+d.line+outer)
	}
	last := o.Members[len(o.Members)-1]
	end := last.Value.EndOffset
	indent, multi := d.alone(last.Name.StartOffset)
	if !multi {
		return d.splice(end, end, ", "+string(key)+": "+compact(value))
	}
	text := string(key) + ": " + d.spread(value, indent)
	after := end
	comma := last.Value.AfterExtra != nil
	if comma {
		after, text = end+len(last.Value.AfterExtra)+1, text+","
	}
	tail := string(d.text[after:closing])
	same := sameLine(tail)
	rest := tail[len(same):]
	if !strings.Contains(rest, "\n") {
		same, rest = strings.TrimRight(tail, " \t"), d.line+outer
	}
	between := string(d.text[end:after])
	if !comma {
		between = ","
	}
	return d.splice(end, closing, between+same+d.line+indent+text+rest)
}

func (d *document) remove(p place) ([]byte, error) {
	o := p.object()
	m := o.Members[p.at]
	last := p.at == len(o.Members)-1
	from, to := m.Name.StartOffset, m.Value.EndOffset
	comma := !last || m.Value.AfterExtra != nil
	if comma {
		to += len(m.Value.AfterExtra) + 1
	}
	begin := bytes.LastIndexByte(d.text[:from], '\n') + 1
	blank := len(bytes.TrimSpace(d.text[begin:from])) == 0
	same := sameLine(string(d.text[to : p.in.EndOffset-1]))
	switch rest := d.text[to+len(same):]; {
	case blank && bytes.HasPrefix(rest, []byte("\r\n")):
		from, to = begin, to+len(same)+2
	case blank && bytes.HasPrefix(rest, []byte("\n")):
		from, to = begin, to+len(same)+1
	case last:
		from = len(bytes.TrimRight(d.text[:from], " \t"))
	default:
		to += len(d.text[to:]) - len(bytes.TrimLeft(d.text[to:], " \t"))
	}
	text := slices.Concat(d.text[:from], d.text[to:])
	if last && p.at > 0 && !comma {
		before := o.Members[p.at-1].Value
		cut := before.EndOffset + len(before.AfterExtra)
		text = slices.Delete(text, cut, cut+1)
	}
	return text, (&document{text: text}).parse()
}

// sameLine returns the blanks and comments at the beginning of a text that end on the
// text's first line.
func sameLine(text string) string {
	at := 0
	for at < len(text) {
		rest := text[at:]
		switch {
		case rest[0] == ' ' || rest[0] == '\t':
			at++
		case strings.HasPrefix(rest, "//"):
			line, _, _ := strings.Cut(rest, "\n")
			return text[:at] + strings.TrimRight(line, "\r")
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest, "*/")
			if end < 0 || strings.Contains(rest[:end], "\n") {
				return text[:at]
			}
			at += end + 2
		default:
			return text[:at]
		}
	}
	return text
}

// splice replaces a part of the text, and checks that the result is JSON.
func (d *document) splice(from, to int, put string) ([]byte, error) {
	text := slices.Concat(d.text[:from], []byte(put), d.text[to:])
	return text, (&document{text: text}).parse()
}

// alone returns the blanks before an offset. ok is false on the first line, and if other characters
// stand before the offset on its line.
func (d *document) alone(at int) (indent string, ok bool) {
	begin := bytes.LastIndexByte(d.text[:at], '\n') + 1
	before := string(d.text[begin:at])
	return before, begin > 0 && strings.Trim(before, " \t") == ""
}

// indentation returns the blanks at the beginning of the line of an offset.
func (d *document) indentation(at int) string {
	line := string(d.text[bytes.LastIndexByte(d.text[:at], '\n')+1 : at])
	return line[:len(line)-len(strings.TrimLeft(line, " \t"))]
}

// wide is the longest array that stays on one line, in bytes.
const wide = 100

// spread formats a value over several lines with indentation. An array of few plain values
// stays on one line. spread drops comments.
func (d *document) spread(v hujson.Value, indent string) string {
	var items []string
	open, closing := "{", "}"
	inner := indent + d.unit
	switch v := v.Value.(type) {
	case hujson.Literal:
		return string(v)
	case *hujson.Object:
		for _, m := range v.Members {
			items = append(items, compact(m.Name)+": "+d.spread(m.Value, inner))
		}
	case *hujson.Array:
		plain := true
		open, closing = "[", "]"
		for _, item := range v.Elements {
			_, literal := item.Value.(hujson.Literal)
			plain = plain && literal
			items = append(items, d.spread(item, inner))
		}
		if line := "[" + strings.Join(items, ", ") + "]"; plain && len(line) <= wide {
			return line
		}
	}
	if len(items) == 0 {
		return open + closing
	}
	return open + d.line + inner + strings.Join(items, ","+d.line+inner) + d.line + indent + closing
}

// compact formats a value on one line. It drops comments.
func compact(v hujson.Value) string {
	var items []string
	switch v := v.Value.(type) {
	case *hujson.Object:
		for _, m := range v.Members {
			items = append(items, compact(m.Name)+": "+compact(m.Value))
		}
		return "{" + strings.Join(items, ", ") + "}"
	case *hujson.Array:
		for _, item := range v.Elements {
			items = append(items, compact(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case hujson.Literal:
		return string(v)
	}
	return "null"
}
