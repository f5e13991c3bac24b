package box

import (
	"bytes"
	"encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// maxSpread limits how many bytes of a message over several lines are kept.
const maxSpread = 4 << 10

// spread recognizes a message that a process writes over several lines, as programs print JSON for
// people. The request that the message answers ends with an error.
type spread struct {
	text   []byte // the message as far as it was written; nil if no such message is being written
	indent []byte // the white space before each member of the message
	ours   bool   // the message has the member jsonrpc
	id     json.RawMessage
	result bool // the message has a result or an error
	told   bool // the id was returned already
}

func (s *spread) add(line []byte) {
	switch rest := bytes.TrimLeft(line, " \t"); {
	case string(bytes.TrimSpace(line)) == "{" && s.text == nil:
		*s = spread{text: bytes.Clone(line)}
		return
	case s.text == nil:
		return
	case len(rest) == len(line):
		*s = spread{} // a line without indent ends the message
		return
	case s.indent == nil:
		s.indent = bytes.Clone(line[:len(line)-len(rest)])
	}
	if len(s.text) < maxSpread {
		s.text = append(append(s.text, ' '), bytes.TrimSpace(line[:min(len(line), maxSpread)])...)
	}
	member, ok := bytes.CutPrefix(line, s.indent)
	if !ok || len(member) == 0 || member[0] != '"' {
		return
	}
	member = member[:min(len(member), maxSpread)]
	for key, value := range wire.Members(append([]byte{'{'}, member...)) {
		switch key {
		case "jsonrpc":
			s.ours = true
		case "id":
			s.id = bytes.Clone(value)
		case "result", "error":
			s.result = true
		}
		return // the rest of the line belongs to the first member
	}
}

// answers returns the id of the message, once, as soon as the message is certainly a response.
func (s *spread) answers() (id json.RawMessage, ok bool) {
	if s.told || !s.ours || !s.result || s.id == nil {
		return nil, false
	}
	s.told = true
	return s.id, true
}
