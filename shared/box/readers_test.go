package box

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// These tests check that every reader understands a line as the box does: which request
// it is, what it asks of which client, and whose progress it reports.

var readers = flag.Int("readers", 3000, "nasty messages that are tried with every reader")

// meaning is how a reader understands a line. Values are JSON, "" if there is none. Method
// is decoded text.
type meaning struct{ ID, Method, Name, Token, RequestID string }

// believed delivers one message of a client to a box while a call of another client is
// open. It returns the line that the process reads, and how the box understands that line.
// ok is false if the process reads no line.
func believed(d dialogue, raw []byte) (line []byte, want meaning, ok bool) {
	open := d.opened()
	d.n++
	stream := "nasty " + strconv.Itoa(d.n)
	d.Deliver(frame.Deliver{ID: storage.StreamID(stream), Session: "s", Raw: raw})
	lines := d.drain()
	msgs, batch, err := wire.ParseBody(raw)
	if err != nil || batch || len(lines) == 0 {
		return nil, want, false
	}
	if len(lines) != 1 {
		d.t.Fatalf("%q becomes %d lines: %q", raw, len(lines), lines)
	}
	m := msgs[0]
	token := wire.Lookup(m.Params, "_meta", "progressToken")
	want = meaning{Method: m.Method, Token: string(token), RequestID: string(wire.Lookup(m.Params, "requestId"))}
	if named(m.Method) {
		want.Name = string(wire.Lookup(m.Params, "name"))
	}
	if d.isOpen("s", stream) {
		if want.ID = strconv.FormatInt(*d.drawn, 10); idKey(token) != "" {
			want.Token = want.ID
		}
	}
	if m.Method == wire.NotifyCancelled {
		want.RequestID = open
	}
	if m.Kind == wire.Notification && token != nil {
		want.Token = string(wire.Lookup(lines[0], "params", "_meta", "progressToken"))
		if want.Token == open {
			d.t.Fatalf("%q reaches the process with the progress token of a call: %q", raw, lines[0])
		}
	}
	d.CloseStream("s", storage.StreamID(stream))
	d.drain()
	return lines[0], want, true
}

// compact returns a meaning without the space between tokens, which makes no difference to
// a reader.
func (m meaning) compact() meaning {
	for _, value := range []*string{&m.ID, &m.Name, &m.Token, &m.RequestID} {
		var out bytes.Buffer
		if json.Compact(&out, []byte(*value)) == nil {
			*value = out.String()
		}
	}
	return m
}

func named(method string) bool {
	return method == wire.MethodToolsCall || method == wire.MethodPromptsGet
}

// opened opens a call unless one is open, and returns its number. The number is small, so
// that a client could guess it.
func (d dialogue) opened() (number string) {
	d.t.Helper()
	if len(d.Open()) == 0 {
		*d.drawn = 0
		d.Deliver(frame.Deliver{ID: "open", Session: "s", Raw: []byte(`{"jsonrpc":"2.0","id":"open","method":"tools/call","params":{"name":"x","_meta":{"progressToken":"p"}}}`)})
		d.drain()
		*d.open = *d.drawn
	}
	return strconv.FormatInt(*d.open, 10)
}

func readStruct(line []byte) (got meaning, err error) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name          json.RawMessage
			RequestID     json.RawMessage `json:"requestId"`
			ProgressToken json.RawMessage `json:"progressToken"`
			Meta          struct {
				ProgressToken json.RawMessage `json:"progressToken"`
			} `json:"_meta"`
		}
	}
	err = json.Unmarshal(line, &m)
	if _, other := err.(*json.UnmarshalTypeError); other { //nolint:errorlint // it is never wrapped
		err = nil // params or _meta are no objects; the rest is read
	}
	return meaning{string(m.ID), m.Method, string(m.Params.Name), string(m.Params.Meta.ProgressToken), string(m.Params.RequestID)}, err
}

func readFolded(line []byte, first bool) (meaning, error) {
	get := func(raw json.RawMessage, name string) (found json.RawMessage) {
		for key, value := range wire.Members(raw) {
			if key, _, _ = strings.Cut(key, "\x00"); strings.EqualFold(key, name) && (found == nil || !first) {
				found = value
			}
		}
		return found
	}
	params := get(line, "params")
	var method string
	err := json.Unmarshal(get(line, "method"), &method)
	return meaning{
		string(get(line, "id")), method, string(get(params, "name")),
		string(get(get(params, "_meta"), "progressToken")), string(get(params, "requestId")),
	}, err
}

func readWire(line []byte) (meaning, error) {
	m, err := wire.Parse(line)
	return meaning{
		string(m.ID), m.Method, string(wire.Lookup(m.Params, "name")),
		string(wire.Lookup(m.Params, "_meta", "progressToken")), string(wire.Lookup(m.Params, "requestId")),
	}, err
}

// checkReaders reads a line with one reader of each kind: Go's struct, which ignores case and
// merges; one that ignores case and takes the last key; one that takes the first key and ends
// keys at a NUL, as C does; and the box's own.
func checkReaders(t *testing.T, raw, line []byte, want meaning) {
	t.Helper()
	if bytes.ContainsAny(line, "\r\n") {
		t.Errorf("%q becomes more than one line: %q", raw, line)
	}
	for name, read := range map[string]func([]byte) (meaning, error){
		"encoding/json":            readStruct,
		"ignoring case, the last":  func(line []byte) (meaning, error) { return readFolded(line, false) },
		"ignoring case, the first": func(line []byte) (meaning, error) { return readFolded(line, true) },
		"wire":                     readWire,
	} {
		got, err := read(line)
		if !named(want.Method) { // only some methods have a name in MCP
			got.Name = ""
		}
		if err != nil || got.compact() != want.compact() {
			t.Errorf("of %q\nin %q\n%s reads %+v (%v), the box believes %+v", raw, line, name, got, err, want)
		}
	}
}

func TestReadersInGoSeeWhatTheBoxBelieves(t *testing.T) {
	const most = 1000                     // messages of a box, whose recorder keeps everything
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same messages each time
	lines := 0
	for from := 0; from < *readers; from += most {
		inBubble(t, Server{}, func(t *testing.T, d dialogue) {
			for range min(most, *readers-from) {
				raw := nasty(random)
				if line, want, ok := believed(d, raw); ok {
					lines++
					checkReaders(t, raw, line, want)
				}
			}
		})
	}
	t.Logf("%d messages: %d refused or answered in place, %d lines read alike", *readers, *readers-lines, lines)
	if lines < *readers/10 || lines > *readers*9/10 {
		t.Errorf("of %d messages %d passed: both have to be tried", *readers, lines)
	}
}

// nasty makes a message that readers could disagree about: keys in other cases, in
// escapes, twice, or with a NUL, and values of every kind. Some messages are plain.
func nasty(r *rand.Rand) []byte {
	n := nastiness{r, []int{0, 0, 2, 10, 40}[r.IntN(5)]}
	method := n.pick(`"tools/call"`, `"tools/call"`, `"prompts/get"`, `"notifications/cancelled"`, `"notifications/x"`, `"m"`, `"\u0074ools/call"`, `"é\u2028"`, `"\ud800"`)
	members := []string{
		n.key("jsonrpc") + `:"2.0"`,
		n.key("method") + ":" + method,
		n.key("params") + ":" + n.params(),
	}
	if !strings.Contains(method, "notifications") || n.rarely() {
		members = append(members, n.key("id")+":"+n.value())
	}
	for n.rarely() {
		members = append(members, n.key(n.pick("id", "method", "params", "jsonrpc", "result", "error", "extra", "__proto__"))+":"+n.pick(n.value(), n.params(), method))
	}
	return []byte(n.object(members))
}

// nastiness says how many of a hundred members are made nasty.
type nastiness struct {
	*rand.Rand
	percent int
}

func (n nastiness) rarely() bool { return n.IntN(100) < n.percent }

func (n nastiness) pick(of ...string) string { return of[n.IntN(len(of))] }

func (n nastiness) params() string {
	if n.rarely() {
		return n.pick(`[]`, `[{"_meta":{"progressToken":1}}]`, `{}`, `null`, `"x"`)
	}
	var members []string
	for _, member := range [][2]string{
		{"name", `"tool"`},
		{"requestId", n.pick(`"open"`, `"op\u0065n"`, `1`, n.value())},
		{"progressToken", n.value()},
		{"_meta", n.meta()},
		{"__proto__", n.meta()},
		{"arguments", n.pick(`{"id":1,"ID":2,"_meta":{"progressToken":9},"a":1,"a":2}`, n.value())},
	} {
		if n.IntN(3) > 0 {
			members = append(members, n.key(member[0])+":"+member[1])
		}
		if n.rarely() {
			members = append(members, n.key(member[0])+":"+n.value())
		}
	}
	return n.object(members)
}

func (n nastiness) meta() string {
	if n.rarely() {
		return n.value()
	}
	var members []string
	for range 1 + n.IntN(2) {
		members = append(members, n.key(n.pick("progressToken", "x", "_meta", "__proto__", "progress"+string(rune('a'+n.IntN(20)))))+":"+n.value())
	}
	return n.object(members)
}

// key writes a key, in most cases unchanged.
func (n nastiness) key(name string) string {
	if !n.rarely() {
		return `"` + name + `"`
	}
	at := n.IntN(len(name))
	switch n.IntN(8) {
	case 0:
		name = strings.ToUpper(name)
	case 1:
		name = name[:at] + strings.ToUpper(name[at:at+1]) + name[at+1:]
	case 2:
		name = strings.NewReplacer("s", "ſ", "k", "\u212a", "i", n.pick("ı", "İ", `\u0131`)).Replace(name)
	case 3:
		name = name[:at] + fmt.Sprintf(`\u%04x`, name[at]) + name[at+1:]
	case 4:
		name += `\u0000` + n.pick("", "x")
	case 5:
		name += n.pick(" ", `\ud800`, "\u200b", "\u0301")
	case 6:
		name = n.pick(" ", "\ufeff", `\u00ad`) + name
	default:
		name = n.pick("id", "ID", "_meta", "_Meta", "requestId", "requestid", "progressToken", "Name")
	}
	return `"` + name + `"`
}

func (n nastiness) value() string {
	return n.pick(`1`, `2`, `3`, `7`, `"p"`, `"1"`, `"\u0031"`, `null`, `true`, `1.0`, `1e0`, `-0`, `9007199254740993`, `12345678901234567890`,
		`{}`, `[]`, `{"progressToken":1}`, `"a\u2028b\u0000"`, "\"\u2028\u0085\"", `""`)
}

func (n nastiness) object(members []string) string {
	n.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	space := n.pick("", "", " ", "\n", "\r\n\t")
	return "{" + space + strings.Join(members, space+","+space) + "}"
}
