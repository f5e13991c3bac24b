//go:build !aws

package catalog

import (
	"errors"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// isTOML decides by the ending of the file's name. Without one it decides by the first
// line that is neither empty nor a comment: a table header, or a key followed by "=".
func (s source) isTOML() bool {
	switch filepath.Ext(s.file) {
	case ".toml":
		return true
	case ".json", ".jsonc":
		return false
	}
	for line := range strings.Lines(string(s.data)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return regexp.MustCompile(`^(\[+[A-Za-z0-9_."' -]+\]+|[A-Za-z0-9_."'-]+\s*=.*)`).MatchString(line)
		}
	}
	return false
}

// toml reads the source as TOML. Decoding first ensures that it is valid and has no
// repeated key. The nodes then come from the parser below the decoder, which reports
// offsets.
func (s source) toml() (node, *remark) {
	var whole map[string]any
	if err := toml.Unmarshal(s.data, &whole); err != nil {
		var wrong *toml.DecodeError
		if !errors.As(err, &wrong) {
			return node{}, &remark{text: "not TOML"} // the rest of the error may quote a value
		}
		line, column := wrong.Position()
		what, _, _ := strings.Cut(strings.TrimPrefix(wrong.Error(), "toml: "), ": strconv.") // which would quote it
		if strings.HasPrefix(what, "expected keyword") {
			what = "write text in double quotes, a number, true or false"
		}
		return node{}, &remark{at: s.offset(line, column), text: "not TOML: " + what}
	}
	root := node{shape: object}
	table := &root
	var p unstable.Parser
	p.Reset(s.data)
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.KeyValue {
			putTOML(table, e)
		} else {
			table = descend(&root, keysOf(e), e.Kind == unstable.ArrayTable)
		}
	}
	if p.Error() != nil {
		return node{}, &remark{text: "not TOML"}
	}
	return root, nil
}

// keysOf returns the parts of a dotted key, each as a member without a value.
func keysOf(e *unstable.Node) (keys []member) {
	for it := e.Key(); it.Next(); {
		keys = append(keys, member{name: string(it.Node().Data), at: int(it.Node().Raw.Offset)})
	}
	return keys
}

// descend returns the table that keys name below n. It makes tables that are missing. Of
// an array of tables it takes the last one, or appends a new one if another is true.
func descend(n *node, keys []member, another bool) *node {
	for i, key := range keys {
		at := -1
		for j := range n.members {
			if n.members[j].name == key.name {
				at = j
			}
		}
		last := another && i == len(keys)-1
		if at < 0 {
			key.value = node{shape: object, at: key.at}
			if last {
				key.value.shape = array
			}
			n.members, at = append(n.members, key), len(n.members)
		}
		n = &n.members[at].value
		if last {
			n.items = append(n.items, node{shape: object, at: key.at})
		}
		if n.shape == array && len(n.items) > 0 {
			n = &n.items[len(n.items)-1]
		}
	}
	return n
}

func putTOML(n *node, e *unstable.Node) {
	keys := keysOf(e)
	last := len(keys) - 1
	n = descend(n, keys[:last], false)
	keys[last].value = fromTOML(e.Value(), keys[last].at)
	n.members = append(n.members, keys[last])
}

// fromTOML converts a value; at is its offset if the parser does not report one.
func fromTOML(v *unstable.Node, at int) node {
	if v.Raw.Length > 0 {
		at = int(v.Raw.Offset)
	}
	n := node{at: at, text: string(v.Data)}
	switch v.Kind {
	case unstable.String:
		n.shape = text
	case unstable.Bool:
		n.shape, n.on = boolean, n.text == "true"
	case unstable.Integer, unstable.Float:
		n.shape, n.text = number, numberTOML(n.text)
	case unstable.Array:
		n.shape = array
		for it := v.Children(); it.Next(); {
			n.items = append(n.items, fromTOML(it.Node(), at))
		}
	case unstable.InlineTable:
		n.shape = object
		for it := v.Children(); it.Next(); {
			putTOML(&n, it.Node())
		}
	default:
		n.shape = date
	}
	return n
}

// numberTOML writes a number of TOML as in JSON. Infinities and NaN become a number that
// is out of every range.
func numberTOML(s string) string {
	s = strings.ReplaceAll(s, "_", "")
	if i, err := strconv.ParseInt(s, 0, 64); err == nil {
		return strconv.FormatInt(i, 10)
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil || math.IsNaN(f):
		return "1e999"
	case math.IsInf(f, 0):
		return strconv.FormatFloat(math.Copysign(1, f), 'f', -1, 64) + "e999"
	default:
		return s
	}
}
