package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

// source is the text of a servers file and turns byte offsets into places.
type source struct {
	file string
	data []byte // without a byte order mark
}

func newSource(file string, data []byte) source {
	return source{file, bytes.TrimPrefix(data, []byte("\ufeff"))}
}

// remark is a problem or a warning, at a byte offset of the source.
type remark struct {
	at   int
	text string
}

func inOrder(remarks []remark) []remark {
	slices.SortStableFunc(remarks, func(a, b remark) int { return a.at - b.at })
	return remarks
}

func (s source) position(at int) Position {
	before := s.data[:at]
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	return Position{s.file, 1 + bytes.Count(before, []byte{'\n'}), 1 + utf8.RuneCount(line)}
}

// shape is the JSON type of a node, in the words used for complaints.
type shape string

const (
	object  shape = "an object"
	array   shape = "an array"
	text    shape = "a string"
	number  shape = "a number"
	boolean shape = "true or false"
	null    shape = "null"
)

// node is one JSON value and where it begins.
type node struct {
	shape   shape
	at      int
	text    string // of a string, decoded; of a number, as written
	on      bool   // of a boolean
	members []member
	items   []node
}

// member is one name of an object and its value. Names may repeat.
type member struct {
	name  string
	at    int
	value node
}

// get returns the first member of that name.
func (n node) get(name string) (member, bool) {
	i := slices.IndexFunc(n.members, func(m member) bool { return m.name == name })
	if i < 0 {
		return member{}, false
	}
	return n.members[i], true
}

// float is the value of a number. Out of range of a float is out of any range of
// ours too: it comes as an infinity.
func (n node) float() float64 {
	v, _ := strconv.ParseFloat(n.text, 64)
	return v
}

// parse reads the whole source as one JSON value, with comments and trailing commas. Validity is settled before
// the tree is built, because only then does the standard decoder report offsets
// that count from the beginning of the file.
func (s source) parse() (node, *remark) {
	if len(s.data) > MaxFile {
		return node{}, &remark{MaxFile, "the file is larger than 1 MiB: this is not a servers file"}
	}
	for i, rest := 0, s.data; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			return node{}, &remark{i, "not UTF-8: save the file as UTF-8"}
		}
		i, rest = i+n, rest[n:]
	}
	clean, problem := s.plain()
	if problem != nil {
		return node{}, problem
	}
	s.data = clean
	check := json.NewDecoder(bytes.NewReader(s.data))
	var whole json.RawMessage
	if err := check.Decode(&whole); err != nil {
		return node{}, s.explain(err)
	}
	end := int(check.InputOffset())
	if rest := bytes.TrimLeft(s.data[end:], " \t\r\n"); len(rest) > 0 {
		at := len(s.data) - len(rest)
		if hint := s.hint(at); hint != nil {
			return node{}, hint
		}
		return node{}, &remark{at, "text after the end of the JSON document: remove it"}
	}
	t := tree{source: s, tokens: json.NewDecoder(bytes.NewReader(s.data))}
	t.tokens.UseNumber()
	root, err := t.value()
	if err != nil {
		return node{}, s.explain(err)
	}
	return root, nil
}

// explain puts a decoder's error into words for someone who edits the file.
func (s source) explain(err error) *remark {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF):
		return &remark{len(s.data), `the file is empty: write {"mcpServers": {}}`}
	case errors.As(err, &syntax):
		at := min(max(int(syntax.Offset)-1, 0), len(s.data))
		if hint := s.hint(at); hint != nil {
			return hint
		}
		return &remark{at, "not JSON: " + syntax.Error()}
	default:
		return &remark{len(s.data), "not JSON: the file ends before its last value does"}
	}
}

// hint recognizes what other JSON dialects allow. It is nil for anything else.
func (s source) hint(at int) *remark {
	if at >= len(s.data) {
		return nil
	}
	rest := s.data[at:]
	switch rest[0] {
	case '#':
		return &remark{at, "a comment begins with //: change or remove it"}
	case '\'':
		return &remark{at, `strings stand in double quotes: "…"`}
	case '}', ']':
		before := bytes.TrimRight(s.data[:at], " \t\r\n")
		if bytes.HasSuffix(before, []byte(",")) {
			return &remark{len(before) - 1, "a comma stands where an element should: remove it"}
		}
	}
	return nil
}

// tree builds nodes from the tokens of a source that is valid JSON.
type tree struct {
	source source
	tokens *json.Decoder
}

// next returns the next token and the offset of its first byte.
func (t tree) next() (json.Token, int, error) {
	rest := t.source.data[t.tokens.InputOffset():]
	at := len(t.source.data) - len(bytes.TrimLeft(rest, " \t\r\n,:"))
	token, err := t.tokens.Token()
	return token, at, err
}

func (t tree) value() (node, error) {
	token, at, err := t.next()
	if err != nil {
		return node{}, err
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '{' {
			return t.object(at)
		}
		return t.array(at)
	case string:
		return node{shape: text, at: at, text: v}, nil
	case json.Number:
		return node{shape: number, at: at, text: v.String()}, nil
	case bool:
		return node{shape: boolean, at: at, on: v}, nil
	default:
		return node{shape: null, at: at}, nil
	}
}

func (t tree) object(at int) (node, error) {
	n := node{shape: object, at: at}
	for t.tokens.More() {
		key, at, err := t.next()
		if err != nil {
			return node{}, err
		}
		name, _ := key.(string)
		value, err := t.value()
		if err != nil {
			return node{}, err
		}
		n.members = append(n.members, member{name, at, value})
	}
	_, _, err := t.next()
	return n, err
}

func (t tree) array(at int) (node, error) {
	n := node{shape: array, at: at}
	for t.tokens.More() {
		item, err := t.value()
		if err != nil {
			return node{}, err
		}
		n.items = append(n.items, item)
	}
	_, _, err := t.next()
	return n, err
}
