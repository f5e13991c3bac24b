package bridge

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Turn makes one response to a client from the events of a call: from the first event, or from where
// the previous response ended, to the result or the next questions to the client. The client is modern
// unless [Turn.Pass] was called. One goroutine uses it.
type Turn struct {
	req    Request
	id     storage.StreamID // the id that the request has at the server
	server json.RawMessage  // the server's serverInfo
	pass   bool             // the client is legacy too
	state  State            // the State that came with the request, zero for none
	given  map[string]bool  // ids of the questions that have an answer
	used   map[string]bool  // keys of the answers that the method early has returned

	at       storage.Index   // index of the last event
	open     []question      // questions that the client must be asked
	passed   json.RawMessage // a modern server's result with inputRequests, nil for none
	own      json.RawMessage // the requestState of that result, nil for none
	again    bool            // all questions in open are URLs, which the user must open before the client makes the call again
	lacks    []string        // path of a capability that the server needed and the client lacks; nil for none
	progress float64         // the value of the last progress that the client was sent
	moved    bool            // the client was sent progress
}

// NewTurn begins the response to a request. stream is the stream of the call, and also the id of
// the request at the server. server is serverInfo, nil if unknown. s is the State that came with
// the request, or zero. The caller must call Take with each event after s.From.
func NewTurn(r Request, stream storage.StreamID, server json.RawMessage, s State) *Turn {
	return &Turn{req: r, id: stream, server: server, state: s, given: map[string]bool{}, used: map[string]bool{}, at: s.From}
}

// Pass makes it the turn of a legacy client: the messages of a legacy server reach it as they are, but
// for progress tokens. Call Pass before the other methods.
func (t *Turn) Pass() { t.pass = true }

// Open returns the JSON-RPC requests with which the server asks, after Pass. Their ids are the keys of
// their answers in inputResponses, which are the client's whole responses.
func (t *Turn) Open() (questions [][]byte) {
	for _, q := range t.open {
		questions = append(questions, q.raw)
	}
	return questions
}

// Served sets serverInfo for a turn that began before serverInfo was known.
func (t *Turn) Served(server json.RawMessage) { t.server = server }

// Answers returns the answers in the request's inputResponses to the questions in its State. It
// ignores answers to other questions. The client is asked again for missing answers.
//
// Errors: *[wire.Error] with [wire.CodeInvalidParams] for a malformed answer.
func (t *Turn) Answers() ([]Answer, error) {
	inputs, _ := objectOf(t.req.Responses)
	var answers []Answer
	for _, in := range inputs {
		method, asked := t.state.Asked[in.key]
		id := t.state.id(in.key)
		if !asked || t.given[id] {
			continue
		}
		if t.pass && wire.Lookup(in.value, "jsonrpc") != nil { // an older program has stored only the result
			t.given[id] = true
			answers = append(answers, Answer{id, in.value})
			continue
		}
		// If several members have this key, get returns the last one, which counts.
		a, err := response(id, in.key, method, inputs.get(in.key))
		if err != nil {
			return nil, err
		}
		t.given[id] = true
		answers = append(answers, a)
	}
	return answers, nil
}

// Complete reports whether every question in the request's State was answered, and whether every
// elicitation among them was accepted.
func (t *Turn) Complete() (complete, agreed bool) {
	inputs, _ := objectOf(t.req.Responses)
	agreed = true
	for key := range t.state.Asked {
		if !t.given[t.state.id(key)] {
			return false, false
		}
		action, elicited := wire.String(wire.Lookup(inputs.get(key), "action"))
		agreed = agreed && (!elicited || action == "accept")
	}
	return true, agreed
}

// Step says what to do about an event.
type Step struct {
	Notify []byte    // a notification to the client, nil for none
	Answer *Answer   // an answer to the server, in the client's place, nil for none
	Reply  *Response // the end of the call, nil for none
}

// Response is the JSON-RPC response to the client's request.
type Response struct {
	Raw  []byte
	Code wire.Code // code of an error, 0 for a result
}

// Take takes the next event of the call. It passes on no notification up to State.Seen: an earlier
// response has done that.
func (t *Turn) Take(e storage.Event) Step {
	seen := e.Index <= t.state.Seen
	t.at = e.Index
	m, err := wire.Parse(e.Raw)
	switch {
	case err != nil: // the event has no message: it only makes the client connect again (storage.Event.Retry)
		return Step{}
	case m.Kind == wire.Request:
		return t.ask(e.Index, m, seen)
	case m.Kind == wire.Notification && m.Method == wire.NotifyCancelled:
		// The server no longer wants an answer to its question.
		id, ok := wire.String(wire.Lookup(m.Params, "requestId"))
		t.open = slices.DeleteFunc(t.open, func(q question) bool { return ok && q.id == id })
		return Step{}
	case m.Kind == wire.Notification && seen:
		return Step{}
	case m.Kind == wire.Notification:
		return Step{Notify: t.notification(m)}
	case !wire.SameID(m.ID, text(string(t.id))):
		return Step{} // the response to a logging/setLevel that Dormouse sent with the request
	default:
		return t.end(m)
	}
}

func (t *Turn) ask(index storage.Index, m wire.Message, seen bool) Step {
	id, ok := wire.String(m.ID)
	q := question{id: id, index: index, method: m.Method, params: bytes.Clone(m.Params)}
	key, asked := t.state.Key(id)
	if !ok || t.given[id] || seen && !asked {
		return Step{}
	}
	if t.pass && t.req.Rounds() {
		q.key, q.raw = id, bytes.Clone(m.Raw)
		t.open = append(t.open, q)
		return Step{}
	}
	if q.key = key; !asked {
		q.key = t.keyFor(q)
	}
	refuse := func(why string) Step {
		a := q.refused(why)
		return Step{Answer: &a}
	}
	switch needs, known := q.needs(); {
	case !known:
		return refuse("this client cannot be asked " + m.Method)
	case !declared(t.req.Capabilities, needs):
		t.lacks = needs
		return refuse("the client has not declared the capability " + strings.Join(needs, "."))
	case !t.req.Rounds():
		return refuse("the client cannot be asked while it waits for " + t.req.Method)
	}
	if a := t.early(q); a != nil {
		return Step{Answer: a}
	}
	t.open = append(t.open, q.withContext(t.req.Capabilities))
	return Step{}
}

// keyFor returns the key of a question in inputRequests. A form with one field gets the name of the field
// if no other question has that key. Any other question gets its id, and so does each question of a call
// that may become a task, because keys must be unique for the task's whole life.
func (t *Turn) keyFor(q question) string {
	name := q.name()
	_, before := t.state.Asked[name]
	if name == "" || before || t.req.mayBeTask() || slices.ContainsFunc(t.open, func(o question) bool { return o.key == name }) {
		return q.id
	}
	return name
}

// early returns the answer to a question that the client has sent with its first request, before it got
// the question. It returns nil if the request has no answer or a malformed one.
func (t *Turn) early(q question) *Answer {
	if t.req.State != "" || q.key == q.id || t.used[q.key] {
		return nil
	}
	responses, _ := objectOf(t.req.Responses)
	a, err := response(q.id, q.key, q.method, responses.get(q.key))
	if err != nil {
		return nil
	}
	t.used[q.key], t.given[q.id] = true, true
	return &a
}

// notification returns what the client gets for the notification m of the server. That is nil unless m
// is progress of this request, a log message that the client wants, or a notification of an extension.
func (t *Turn) notification(m wire.Message) []byte {
	switch m.Method {
	case wire.NotifyProgress:
		n, err := strconv.ParseFloat(string(wire.Lookup(m.Params, "progress")), 64)
		if t.req.Token == nil || !t.pass && (err != nil || t.moved && n <= t.progress) {
			return nil
		}
		t.progress, t.moved = n, true
		// A client may repeat its request with another progress token than the one that the server
		// has got.
		raw, _ := wire.Replace(m.Raw, t.req.Token, "params", wire.MetaProgressToken)
		return raw
	case wire.NotifyMessage:
		level, _ := wire.String(wire.Lookup(m.Params, "level"))
		if known := severity(level) >= 0; (known || !t.pass) && (t.req.LogLevel == "" || severity(level) < severity(t.req.LogLevel)) {
			return nil
		}
		return m.Raw
	default:
		if t.pass || t.req.Extended() && wire.OfExtension(m.Method) {
			return m.Raw
		}
		return nil
	}
}

func (t *Turn) end(m wire.Message) Step {
	if t.pass {
		return Step{Reply: &Response{Raw: m.Raw}}
	}
	if m.Error == nil && t.req.Rounds() && Wants(m.Result) {
		return t.relay(m.Result)
	}
	if m.Error == nil {
		// Many servers ask for roots in every call, and work without them.
		if t.lacks != nil && t.lacks[0] != "roots" && string(wire.Lookup(m.Result, "isError")) == "true" {
			return t.missing(t.lacks, firstText(m.Result))
		}
		return Step{Reply: &Response{Raw: wire.ResultResponse(t.req.ID, Result(t.req.Method, m.Result, t.server))}}
	}
	said, _ := wire.String(wire.Lookup(m.Error, "message"))
	if string(wire.Lookup(m.Error, "code")) == strconv.Itoa(int(wire.CodeURLElicitation)) && t.req.Rounds() {
		if visits := elicitations(m.Error); len(visits) > 0 {
			if path := []string{"elicitation", "url"}; !declared(t.req.Capabilities, path) {
				return t.missing(path, said)
			}
			t.open, t.again = visits, true
			return Step{}
		}
	}
	if t.lacks != nil {
		return t.missing(t.lacks, said)
	}
	fault, code := Fault(m.Error)
	if code == 0 && wire.OfExtension(t.req.Method) {
		// go-sdk up to 1.6 answers a method that it does not know with the code 0.
		code = wire.CodeMethodNotFound
		fault, _ = wire.Replace(fault, number(int64(code)), "code")
	}
	if none := nothing(t.req.Method); none != nil && code == wire.CodeMethodNotFound {
		// The function Unknown may have offered the client a list that the server does not have.
		return Step{Reply: &Response{Raw: wire.ResultResponse(t.req.ID, Result(t.req.Method, none, t.server))}}
	}
	return Step{Reply: &Response{Raw: object{{"jsonrpc", text("2.0")}, {"id", t.req.ID}, {"error", fault}}.encode(), Code: code}}
}

// relay takes a modern server's result with inputRequests, which the client gets as it is.
func (t *Turn) relay(result json.RawMessage) Step {
	inputs, own, fault := ReadInputs(result)
	if fault != nil {
		return Step{Reply: &Response{Raw: wire.ErrorResponse(t.req.ID, fault), Code: fault.Code}}
	}
	for _, in := range inputs {
		if path, _ := in.question().needs(); !declared(t.req.Capabilities, path) {
			return t.missing(path, "")
		}
	}
	t.passed, t.own = result, own
	return Step{}
}

// Request returns the request, with those parts of its State that [Request.Forward] needs.
func (t *Turn) Request() Request {
	r := t.req
	r.passed, r.own, r.Round = t.state.Passed, t.state.Own, t.state.Round
	return r
}

// firstText returns the first text of a tool's result, or "".
func firstText(result json.RawMessage) string {
	var r struct {
		Content []struct{ Text string }
	}
	_ = json.Unmarshal(result, &r) // if the result has another form, it has no text
	for _, c := range r.Content {
		if c.Text != "" {
			return c.Text
		}
	}
	return ""
}

// missing returns the error for a call that failed because its server needed a capability
// that the request has not declared. said is the server's own message.
func (t *Turn) missing(path []string, said string) Step {
	e := &wire.Error{
		Code:    wire.CodeMissingCapability,
		Message: "the server needs the client capability " + strings.Join(path, ".") + " for this; declare it, or do without",
		Data: struct {
			Required json.RawMessage `json:"requiredCapabilities"`
			Said     string          `json:"serverError,omitempty"`
		}{required(path), said},
	}
	return Step{Reply: &Response{Raw: wire.ErrorResponse(t.req.ID, e), Code: e.Code}}
}

// Asks reports whether there are questions for the client. Later events may add questions or withdraw
// some.
func (t *Turn) Asks() bool {
	return t.passed != nil || len(t.open) > 0 && (t.again || t.at >= t.state.Seen)
}

// Questions returns how many questions for the client are open.
func (t *Turn) Questions() int { return len(t.open) }

// Again reports whether the call has ended with questions, so that the client's next request is a new
// call.
func (t *Turn) Again() bool { return t.again || t.passed != nil }

// State returns the State that the client must send back with its answers. The caller sets
// Session and Expires.
func (t *Turn) State() State {
	s := State{Asked: map[string]string{}, Digest: t.req.Digest(), Round: t.state.Round}
	if t.Again() {
		s.Round++
	}
	if t.passed != nil {
		s.Passed, s.Own = true, t.own
		return s
	}
	for _, q := range t.open {
		if s.Asked[q.key] = q.method; q.key != q.id {
			if s.IDs == nil {
				s.IDs = map[string]string{}
			}
			s.IDs[q.key] = q.id
		}
	}
	if !t.again {
		s.Stream, s.From, s.Seen = t.id, t.open[0].index-1, t.at
	}
	return s
}

// Required returns the response with the inputRequests for the client. The argument sealed is its
// requestState, a sealed State (MCP 2026-07-28, "Multi Round-Trip Requests").
func (t *Turn) Required(sealed string) []byte {
	if t.passed != nil {
		result, _ := objectOf(t.passed)
		return wire.ResultResponse(t.req.ID, result.with(requestState, text(sealed)).withMeta(wire.MetaServerInfo, t.server).encode())
	}
	inputs := make(object, len(t.open))
	for i, q := range t.open {
		inputs[i] = member{q.key, q.input()}
	}
	result := object{
		{"resultType", text(wire.ResultInputRequired)},
		{inputRequests, inputs.encode()},
		{requestState, text(sealed)},
	}.withMeta(wire.MetaServerInfo, t.server)
	return wire.ResultResponse(t.req.ID, result.encode())
}
