package serversfile

import (
	"bytes"
	"slices"
	"strconv"
	"unicode/utf8"
)

// source is the text of a servers file.
type source struct {
	file string
	data []byte // without a byte order mark
}

func newSource(file string, data []byte) source {
	return source{file, bytes.TrimPrefix(data, []byte("\ufeff"))}
}

// remark is a problem or a warning, at a byte offset of the source.
type remark struct {
	at    int
	text  string
	lacks *Variable // the variable whose value is missing; nil for another problem
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

// shape is the type of a node, as complaints name it.
type shape string

const (
	object  shape = "an object"
	array   shape = "an array"
	text    shape = "a string"
	number  shape = "a number"
	boolean shape = "true or false"
	null    shape = "null"
)

type node struct {
	shape   shape
	at      int
	text    string // a string is decoded; a number is in the form that strconv.ParseFloat reads
	on      bool   // the value of a boolean
	members []member
	items   []node
}

// member is one name of an object and its value. Names may repeat.
type member struct {
	name  string
	at    int
	value node
}

func (n node) get(name string) (member, bool) {
	i := slices.IndexFunc(n.members, func(m member) bool { return m.name == name })
	if i < 0 {
		return member{}, false
	}
	return n.members[i], true
}

// float returns the value of a number. If a float cannot hold the value, the result is an
// infinity, which no setting accepts.
func (n node) float() float64 {
	v, _ := strconv.ParseFloat(n.text, 64)
	return v
}

// parse reads the whole source as one value.
func (s source) parse() (node, *remark) {
	v, problem := s.json()
	if problem != nil {
		return node{}, problem
	}
	return fromJSON(v), nil
}

// offset returns the byte offset of a line and a column that counts bytes.
func (s source) offset(line, column int) int {
	at := 0
	for range line - 1 {
		next := bytes.IndexByte(s.data[at:], '\n')
		if next < 0 {
			break
		}
		at += next + 1
	}
	return min(max(at+column-1, 0), len(s.data))
}
