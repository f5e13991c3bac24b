package serversfile

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

// deepest is how deep objects and arrays may nest.
const deepest = 1000

// json reads the source as JSON with the additions of editors: comments, and a comma
// after the last element.
func (s source) json() (hujson.Value, *remark) {
	if len(s.data) > MaxFile {
		return hujson.Value{}, &remark{at: MaxFile, text: "the file is larger than 1 MiB: this is not a servers file"}
	}
	for i, rest := 0, s.data; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			return hujson.Value{}, &remark{at: i, text: "not UTF-8: save the file as UTF-8"}
		}
		i, rest = i+n, rest[n:]
	}
	if IsTOML(s.data, s.file) {
		return hujson.Value{}, &remark{text: "the file is TOML: if it is of another client, " + s.copies()}
	}
	if at := s.tooDeep(); at >= 0 {
		return hujson.Value{}, &remark{at: at, text: "not JSON that a servers file has: too many brackets lie in one another"}
	}
	// hujson takes a comment for unfinished if the file ends right after it.
	v, err := hujson.Parse(append(slices.Clone(s.data), '\n'))
	if err != nil {
		return v, s.explain(v, err)
	}
	return v, nil
}

// tooDeep returns the offset at which brackets nest too deeply for a recursive parser, -1 if they
// do not.
func (s source) tooDeep() int {
	depth := 0
	for at, c := range s.data {
		switch c {
		case '{', '[':
			if depth++; depth > deepest {
				return at
			}
		case '}', ']':
			depth--
		}
	}
	return -1
}

func fromJSON(v hujson.Value) node {
	n := node{at: v.StartOffset}
	switch v := v.Value.(type) {
	case *hujson.Object:
		n.shape = object
		for _, m := range v.Members {
			name, _ := m.Name.Value.(hujson.Literal)
			n.members = append(n.members, member{name.String(), m.Name.StartOffset, fromJSON(m.Value)})
		}
	case *hujson.Array:
		n.shape = array
		for _, item := range v.Elements {
			n.items = append(n.items, fromJSON(item))
		}
	case hujson.Literal:
		switch v.Kind() {
		case '"':
			n.shape, n.text = text, v.String()
		case 't', 'f':
			n.shape, n.on = boolean, v.Bool()
		case 'n':
			n.shape = null
		default:
			n.shape, n.text = number, string(v)
		}
	}
	return n
}

// explain rewords an error of hujson for the author of the file. It leaves out hujson's
// quotes of the file, which may be secret.
func (s source) explain(v hujson.Value, err error) *remark {
	var line, column int
	_, _ = fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &line, &column)
	at := s.offset(line, column)
	what := err.Error()
	what = what[strings.LastIndex(what, ": ")+2:]
	rest := s.data[at:]
	switch {
	case strings.Contains(err.Error(), "parsing comment"):
		return &remark{at: at, text: "the comment has no end: write */ behind it"}
	case v.StartOffset >= len(s.data):
		return &remark{at: len(s.data), text: `the file is empty: write {"mcpServers": {}}`}
	case at >= len(s.data) || strings.Contains(what, "EOF"):
		return &remark{at: len(s.data), text: "not JSON: the file ends before its last value does"}
	case rest[0] == '#':
		return &remark{at: at, text: "a comment begins with //: change or remove it"}
	case rest[0] == '\'', bytes.HasPrefix(rest, []byte("“")), bytes.HasPrefix(rest, []byte("”")):
		return &remark{at: at, text: `strings stand in double quotes: "…"`}
	case strings.Contains(what, "after top-level value") && s.data[v.StartOffset] == '"':
		return &remark{at: at, text: `text outside of an object: write {"mcpServers": {…}} around it`}
	case strings.Contains(what, "after top-level value"):
		return &remark{at: at, text: "text after the end of the JSON document: remove it"}
	case bytes.HasPrefix(rest, []byte(`"`)) && strings.Contains(err.Error(), "invalid literal"):
		return &remark{at: at, text: `not JSON: the string holds a line break, or a \ with a wrong letter behind it`}
	case strings.Contains(err.Error(), "invalid literal"):
		return &remark{at: at, text: `not JSON: write text in double quotes, a number, true, false or null`}
	case strings.Contains(what, "expecting ','"):
		return &remark{at: at, text: "not JSON: a comma is missing before this"}
	default:
		return &remark{at: at, text: "not JSON: " + what}
	}
}
