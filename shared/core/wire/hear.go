package wire

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Hear reads a line that a server wrote to its stdout, and calls the function each for every part of
// the line, in order. The argument raw is the part, and m the message in it. If the part is no message,
// err says why, and m has only the id, if the id can be read.
//
// Hear takes a message whose form is odd if it can mean only one thing, and returns it in
// the right form. Around a message may stand text, a byte order mark, NUL bytes and colour
// codes. A line may have several messages, alone or in a batch. These members are odd:
//
//   - "error": null beside a result, and "result": null beside an error
//   - "params": null or [], and "method": null in a response
//   - "id": null in a notification
//   - "jsonrpc" is missing, or is the number 2
//
// Programs log JSON, too. So a message without a version, or behind text, counts as a
// request or notification only if a server of MCP sends its method.
func Hear(line []byte, each func(m Message, raw []byte, err error)) {
	line = trim(line)
	if len(line) == 0 {
		return
	}
	if m, err := Parse(line); err == nil {
		switch {
		case bytes.IndexByte(line, '\r') >= 0:
			m, err = Parse(Compact(line)) // some readers take a CR for the end of the line
		case m.Kind != Response && m.Params == nil && Lookup(line, "params") != nil:
			m, err = m.renewed() // without "params": null
		}
		each(m, line, err)
		return
	}
	line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	if bytes.ContainsAny(line, "\x00\x1b") { // JSON never has these
		line = bytes.ReplaceAll(colours.ReplaceAll(line, nil), []byte{0}, nil)
	}
	for afterText := false; len(line) > 0; {
		i := begin(line)
		if text := bytes.Trim(line[:i], blank); len(text) > 0 {
			_, err := Parse(text)
			each(Message{}, text, err)
			afterText = true
		}
		if line = line[i:]; len(line) == 0 {
			return
		}
		c := checker{raw: line}
		if !c.value() {
			each(Message{}, line, check(line))
			return
		}
		value := line[:c.pos:c.pos]
		line = line[c.pos:]
		values := slices.Values([]json.RawMessage{value})
		if value[0] == '[' {
			values = Elements(value)
		}
		for one := range values {
			m, err := parseOdd(one, afterText)
			each(m, one, err)
		}
	}
}

// colours are the escape sequences of terminals.
var colours = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_])`)

// begin returns the index of the first object, or of a batch that is the rest of the line. It returns
// the length of the line if there is neither.
func begin(line []byte) int {
	if i := len(line) - len(bytes.TrimLeft(line, blank)); i < len(line) && line[i] == '[' {
		if c := (checker{raw: line, pos: i}); c.value() && c.pos == len(line) {
			return i
		}
	}
	for i, c := range line {
		if c != '{' {
			continue
		}
		if next := skipSpace(line, i+1); next < len(line) && line[next] == '"' {
			return i
		}
	}
	return len(line)
}

// blank has the characters that say nothing: a byte order mark and space.
const blank = "\uFEFF \t\r\n"

// parseOdd reads one message whose form may be odd.
func parseOdd(raw []byte, afterText bool) (Message, error) {
	m, err := parse(raw)
	if err == nil && !afterText {
		return m.renewed()
	}
	if raw[0] != '{' {
		return m, err
	}
	t, wrong := split(raw)
	if wrong != nil {
		return m, err
	}
	doubtful := t.straighten() || afterText
	straight, wrong := t.message()
	if wrong == nil {
		wrong = straight.checkParams()
	}
	switch {
	case wrong != nil && err == nil:
		return m, wrong
	case wrong != nil:
		return m, err
	case doubtful && straight.Kind != Response && !sentByServers(straight.Method):
		return Message{}, invalid("%q is no method that a server of MCP calls", straight.Method)
	}
	return straight.renewed()
}

// renewed encodes the message anew, on one line, and parses the result.
func (m Message) renewed() (Message, error) {
	m.Raw = m.Line()
	return Parse(m.Raw)
}

// straighten corrects the odd members that [Hear] lists. The result doubtful says that the
// message does not name its version.
func (t *parts) straighten() (doubtful bool) {
	null := func(token json.RawMessage) bool { return string(token) == "null" }
	if null(t.params) {
		t.params = nil
	}
	if null(t.method) {
		t.method = nil
	}
	switch {
	case null(t.fault) && t.result != nil:
		t.fault = nil
	case null(t.result) && t.fault != nil:
		t.result = nil
	}
	if method, ok := String(t.method); ok && null(t.id) && strings.HasPrefix(method, "notifications/") {
		t.id = nil
	}
	doubtful = t.version == nil
	if n, ok := Integer(t.version); doubtful || ok && n == 2 {
		t.version = json.RawMessage(`"2.0"`)
	}
	return doubtful
}

// sentByServers reports whether MCP has this method among those that servers call.
func sentByServers(method string) bool {
	switch method {
	case MethodPing, MethodCreateMessage, MethodElicit, MethodRootsList, NotifyCancelled, NotifyProgress, NotifyMessage,
		NotifyToolsChanged, NotifyPromptsChanged, NotifyResourcesChanged, NotifyResourceUpdated,
		NotifyElicitationComplete, NotifyTaskStatus, NotifyTasks, NotifyAcknowledged:
		return true
	default:
		return false
	}
}

// maxExact is the largest number up to which every reader of JSON counts exactly.
const maxExact = 1 << 53

// Integer returns the value of a token that stands for a whole number: 5, 5.0, 5e0 or "5".
// Some servers write an id or a progress token in another form than they got it.
func Integer(token json.RawMessage) (n int64, ok bool) {
	text := string(token)
	if s, isString := String(token); isString {
		text = s
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	if len(text) > 32 || strings.Trim(text, "0123456789.eE+-") != "" {
		return 0, false // such as 0x1p3, 1_000 and NaN, which ParseFloat reads
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != float64(int64(f)) || f > maxExact || f < -maxExact {
		return 0, false
	}
	return int64(f), true
}
