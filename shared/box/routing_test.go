package box

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// talk is a conversation, with everything that it has sent. No clock runs: the order of
// the calls decides.
type talk struct {
	*conversation
	t    *testing.T
	sent []string
	out  []string // each entry is "stream[!]: raw", with ! for the last event of the stream
	full bool
}

func newTalk(t *testing.T) *talk {
	k := &talk{t: t}
	k.conversation = newConversation(counting(), false, k)
	k.pipe, k.clock = k, stopped{}
	return k
}

func (k *talk) send(number int64, line []byte) bool {
	if k.full {
		return false
	}
	k.sent = append(k.sent, string(line))
	if r := k.requests[number]; r != nil {
		k.known(r)
	}
	return true
}

func (k *talk) withdraw(_ *request, line []byte) { k.send(0, line) }

func (k *talk) event(to *stream, raw []byte, final bool) {
	name := "common"
	if to != nil {
		name = to.id
	}
	if final {
		name += "!"
	}
	k.out = append(k.out, name+": "+string(raw))
}

func (k *talk) direct(*request, bool, wire.Message) (*session, *wire.Error) { return nil, nil }

// stopped is a clock that stands still.
type stopped struct{}

func (stopped) opened(*question) {}
func (stopped) closed(*question) {}
func (stopped) quiet()           {}
func (stopped) over()            {}

// request passes a client's request on a stream to the process.
func (k *talk) request(stream *stream, raw string) *request {
	k.t.Helper()
	m, err := wire.Parse([]byte(raw))
	commontest.OK(k.t, err)
	r, refused := k.add(stream, m)
	if refused != nil {
		k.t.Fatalf("%s is refused: %v", raw, refused)
	}
	if !k.pass(r, m) {
		k.t.Fatalf("%s does not fit", raw)
	}
	return r
}

// said has the process send a message. It reports whether the conversation takes the
// message.
func (k *talk) said(raw string) bool {
	k.t.Helper()
	m, err := wire.Parse([]byte(raw))
	commontest.OK(k.t, err)
	switch m.Kind {
	case wire.Response:
		return k.response(m)
	case wire.Request:
		return k.ask(m) == nil
	default:
		return k.notification(m, false)
	}
}

// wantOut compares lines with what was sent since its last call. %s in a line stands for
// the id of the question.
func (k *talk) wantOut(lines ...string) {
	k.t.Helper()
	commontest.SameIn(k.t, "what came out", lines, k.out)
	k.out = nil
}

func (k *talk) question() string {
	k.t.Helper()
	all := k.openQuestions(nil)
	if len(all) != 1 {
		k.t.Fatalf("open questions: %q, want one", all)
	}
	return all[0]
}

func TestIdsKeepTypeAndDigits(t *testing.T) {
	for _, id := range []string{`1`, `"1"`, `9007199254740993`, `-0`, `1.50`, `1e3`, `""`, `"\u0061\/"`, `"日本"`} {
		k := newTalk(t)
		k.request(&stream{id: "d", open: 1}, `{"id": `+id+` ,"method":"m", "jsonrpc":"2.0","params":{"a":1.0},"extra":[ 1 ]}`)
		commontest.EqualIn(t, "the process", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1.0}}`, k.sent[0])
		k.said(`{"result":{"n": 12345678901234567890},"jsonrpc":"2.0","id":1}`)
		k.wantOut(`d!: {"jsonrpc":"2.0","id":` + id + `,"result":{"n": 12345678901234567890}}`)
	}
}

// A request that was sent again has a second number, which the process answers.
func TestARequestThatWasSentAgainIsAnsweredOnce(t *testing.T) {
	k := newTalk(t)
	again := k.renumber(k.request(&stream{id: "a", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m"}`))
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, again)
	if !k.said(answer) || k.said(answer) {
		t.Error("the answer is not taken once")
	}
	k.wantOut(`a!: {"jsonrpc":"2.0","id":1,"result":{}}`)
}

func TestEqualIdsOfDifferentTypeDoNotCollide(t *testing.T) {
	k := newTalk(t)
	k.request(&stream{id: "a", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m"}`)
	k.request(&stream{id: "b", open: 1}, `{"jsonrpc":"2.0","id":"1","method":"m"}`)
	k.said(`{"jsonrpc":"2.0","id":2,"result":{}}`)
	k.said(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	k.wantOut(`b!: {"jsonrpc":"2.0","id":"1","result":{}}`, `a!: {"jsonrpc":"2.0","id":1,"result":{}}`)
}

// Clients know their own tokens only, so the box finds its number in every form.
func TestProgressGoesToItsRequestUnderTheClientsToken(t *testing.T) {
	const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":0.50}}`
	for _, token := range []string{`"tok"`, `7`, `9007199254740993`} {
		k := newTalk(t)
		k.request(&stream{id: "other", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m"}`)
		k.request(&stream{id: "d", open: 1}, `{"jsonrpc":"2.0","id":2,"method":"m","params":{"_meta":{"progressToken":`+token+`}}}`)
		commontest.EqualIn(t, "the process gets token", "2", string(wire.Lookup([]byte(k.sent[1]), "params", "_meta", "progressToken")))
		for _, form := range []string{"2", `"2"`, "2.0", `"2.0"`, "2e0"} {
			k.said(fmt.Sprintf(progress, form))
			k.wantOut("d: " + fmt.Sprintf(progress, token))
		}
	}
}

// A modern client may listen to nothing, so it gets an extension's notification with the
// call that is in flight. MCP's own, and those of a subscription, are outside of calls.
func TestNotificationOfAnExtensionGoesToTheCallOfAModernClient(t *testing.T) {
	const tick = `{"jsonrpc":"2.0","method":"notifications/com.example/tick","params":{"n":1.50}}`
	const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	for version, of := range map[string]string{"2025-11-25": "common", "2026-07-28": "d"} {
		k := newTalk(t)
		k.request(&stream{id: "d", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"`+version+`"}}}`)
		k.said(tick)
		k.said(changed)
		if m, err := wire.Parse([]byte(tick)); err != nil || !k.notification(m, true) {
			t.Error("a notification of a subscription is dropped")
		}
		k.said(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		k.said(tick)
		k.wantOut(of+": "+tick, "common: "+changed, "common: "+tick, `d!: {"jsonrpc":"2.0","id":1,"result":{}}`, "common: "+tick)
	}
}

func TestProgressForNoOpenRequest(t *testing.T) {
	k := newTalk(t)
	k.request(&stream{id: "a", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":"x"}}}`)
	k.request(&stream{id: "b", open: 1}, `{"jsonrpc":"2.0","id":2,"method":"m"}`)
	k.said(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	k.out = nil
	for token, why := range map[string]string{
		"1": "it is over", "2": "its client did not ask for progress", "3": "no request has this number",
		`"own"`: "no request has it", "0": "no request has it", "-1": "no request has it", "1.0": "it is over", `"2"`: "its client did not ask",
		"null": "it is no token", "{}": "it is no token",
	} {
		if k.said(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + token + `,"progress":1}}`) {
			t.Errorf("progress for token %s is passed, but %s", token, why)
		}
		k.wantOut()
	}
}

func TestWhatTheServerSaysByItselfGoesToTheCallItBelongsTo(t *testing.T) {
	log := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`
	changed := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	k := newTalk(t)
	k.said(log)
	k.wantOut("common: " + log)
	k.request(&stream{id: "a", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m"}`)
	k.said(log)
	k.said(changed)
	k.wantOut("a: "+log, "common: "+changed)
	k.request(&stream{id: "b", open: 1}, `{"jsonrpc":"2.0","id":2,"method":"m"}`)
	k.said(log)
	k.wantOut("b: " + log)
	k.said(`{"jsonrpc":"2.0","id":2,"result":{}}`)
	k.out = nil
	k.said(log)
	k.wantOut("a: " + log)
	k.said(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	k.out = nil
	k.said(log)
	k.wantOut("common: " + log)
}

func TestQuestionGoesToTheCallItBelongsToAndItsAnswerBack(t *testing.T) {
	for _, c := range []struct {
		name    string
		inFight []string
		stream  string
	}{
		{"none in flight", nil, "common"},
		{"one", []string{"a"}, "a"},
		{"several: the newest", []string{"a", "b", "c"}, "c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t)
			for i, name := range c.inFight {
				k.request(&stream{id: name, open: 1}, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"m"}`, i))
			}
			k.said(`{"jsonrpc":"2.0","id":9007199254740993,"method":"sampling/createMessage","params":{"x":1.0}}`)
			q := k.question()
			k.wantOut(c.stream + `: {"jsonrpc":"2.0","id":"` + q + `","method":"sampling/createMessage","params":{"x":1.0}}`)
			k.sent = nil
			answer, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":"` + q + `","result":{"r":1.0}}`))
			if err != nil || !k.answer(nil, q, answer) {
				t.Fatalf("the answer is not taken (%v)", err)
			}
			commontest.SameIn(t, "the process", []string{`{"jsonrpc":"2.0","id":9007199254740993,"result":{"r":1.0}}`}, k.sent)
			commontest.EqualIn(t, "a second answer is taken", false, k.answer(nil, q, answer))
		})
	}
}

func TestQuestionIsForgottenWithACallThatIsCancelled(t *testing.T) {
	k := newTalk(t)
	k.request(&stream{id: "a", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m"}`)
	k.said(`{"jsonrpc":"2.0","id":5,"method":"elicitation/create"}`)
	cancel, err := wire.Parse([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`))
	commontest.OK(t, err)
	k.cancel(nil, cancel)
	if open := k.openQuestions(nil); open != nil || !k.idle() {
		t.Errorf("open questions %q after the end of the call", open)
	}
	k.out = nil
	commontest.EqualIn(t, "the server's cancel of it is passed", false, k.said(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`))
	k.wantOut()
}

// A server that answers a call does not wait in it, so the question belongs to something else:
// to another call, or to the server's start.
func TestQuestionOutlivesACallThatTheServerAnswers(t *testing.T) {
	k := newTalk(t)
	k.request(&stream{id: "a", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"asks"}`)
	k.request(&stream{id: "b", open: 1}, `{"jsonrpc":"2.0","id":2,"method":"another"}`)
	k.said(`{"jsonrpc":"2.0","id":"e","method":"elicitation/create"}`)
	q := k.question()
	k.said(`{"jsonrpc":"2.0","id":2,"result":{}}`)
	if k.idle() || k.questions[q] == nil || k.questions[q].stream().id != "a" {
		t.Fatal("the question has not gone to the call that is left")
	}
	k.said(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	commontest.EqualIn(t, "idle with a question without a call", true, k.idle())
	k.sent = nil
	answer, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":"` + q + `","result":{}}`))
	if err != nil || !k.answer(nil, q, answer) {
		t.Fatalf("the answer is not taken (%v)", err)
	}
	commontest.SameIn(t, "the process", []string{`{"jsonrpc":"2.0","id":"e","result":{}}`}, k.sent)
}

func TestServerWithdrawsAQuestionOnItsStream(t *testing.T) {
	k := newTalk(t)
	k.request(&stream{id: "a", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m"}`)
	k.said(`{"jsonrpc":"2.0","id":"e","method":"elicitation/create"}`)
	k.request(&stream{id: "b", open: 1}, `{"jsonrpc":"2.0","id":2,"method":"m"}`)
	q := k.question()
	k.out = nil
	k.said(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"e","reason":"late"}}`)
	k.wantOut(`a: {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"` + q + `","reason":"late"}}`)
	commontest.EqualIn(t, "open questions", 0, len(k.openQuestions(nil)))
}

func TestNeitherSideCanFillTheTables(t *testing.T) {
	k := newTalk(t)
	for i := range maxQuestions {
		if !k.said(`{"jsonrpc":"2.0","id":` + strconv.Itoa(i) + `,"method":"roots/list"}`) {
			t.Fatalf("question %d is refused", i)
		}
	}
	commontest.EqualIn(t, "one question too many is taken", false, k.said(`{"jsonrpc":"2.0","id":"one more","method":"roots/list"}`))
	m, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", maxID) + `","method":"m"}`))
	commontest.OK(t, err)
	if _, refused := k.add(&stream{}, m); refused == nil || refused.Code != wire.CodeInvalidRequest {
		t.Errorf("a huge id is refused with %v", refused)
	}
}

func TestRequestInFlightTwiceIsRefusedAndTheFirstGoesOn(t *testing.T) {
	r := newRig(t, "normal")
	first := r.call(`"x"`, "ask", `"q1"`)
	q := r.event(t, first)
	second := r.call(`"\u0078"`, "echo", "1")
	f := r.failure(second)
	if f.ID != `"\u0078"` || f.Code != -32600 || f.Message != "duplicate request id" {
		t.Errorf("got id %s, code %d, message %q", f.ID, f.Code, f.Message)
	}
	visible, _ := wire.String(wire.Lookup(q.Raw, "id"))
	r.Answer("s", visible, []byte(`{"jsonrpc":"2.0","id":"`+visible+`","result":{"role":"user"}}`))
	commontest.EqualIn(t, "the first ends", `"user"`, string(wire.Lookup(r.result(first), "answer", "result", "role")))
	r.result(r.call(`"x"`, "echo", "1")) // free again
}

func TestQuestionsAreListedUntilTheyAreAnswered(t *testing.T) {
	r := newRig(t, "normal")
	a := r.call("1", "ask", `"one"`)
	first, _ := wire.String(wire.Lookup(r.event(t, a).Raw, "id"))
	second, _ := wire.String(wire.Lookup(r.event(t, r.call("2", "ask", `"two"`)).Raw, "id"))
	commontest.SameIn(t, "questions", map[storage.ID][]string{"s": {first, second}}, r.Questions())
	r.Answer("s", first, []byte(`{"jsonrpc":"2.0","id":"`+first+`","error":{"code":-1,"message":"no"}}`))
	r.Answer("elsewhere", second, []byte(`{"jsonrpc":"2.0","id":"`+second+`","result":{}}`))
	r.Answer("s", second, []byte(`no JSON`))
	commontest.EqualIn(t, "the server gets its answer under id", `"one"`, string(wire.Lookup(r.result(a), "answer", "id")))
	commontest.SameIn(t, "questions", map[storage.ID][]string{"s": {second}}, r.Questions())
}

func TestNumbersInAProcessAreNotToBeGuessed(t *testing.T) {
	for scope, most := range map[Scope]int64{ScopeSession: 1<<31 - 1, ScopePrincipal: 1<<53 - 1, ScopeShared: 1<<53 - 1} {
		draw := numbers(scope)
		seen := map[int64]bool{}
		var high, odd int
		for range 1000 {
			n := draw()
			if n < 1 || n > most {
				t.Fatalf("scope %s: drew %d, want 1 to %d", scope, n, most)
			}
			seen[n] = true
			if n > most/2 {
				high++
			}
			odd += int(n % 2)
		}
		// A correct generator fails here once in more than a billion runs.
		if len(seen) < 990 || high < 400 || high > 600 || odd < 400 || odd > 600 {
			t.Errorf("scope %s: of 1000 numbers %d are different, %d high, %d odd", scope, len(seen), high, odd)
		}
	}
}

func TestServerSaysNothingThatIsReadInTwoWays(t *testing.T) {
	r := newRig(t, "normal")
	for name, test := range map[string]struct{ says, fails string }{
		"a response under two ids":  {`{"jsonrpc":"2.0","id":$ID,"ID":99,"result":{}}`, `member "ID" is refused`},
		"the second id comes first": {`{"jsonrpc":"2.0","ID":99,"id":$ID,"result":{}}`, `member "ID" is refused`},
		"two results":               {`{"jsonrpc":"2.0","id":$ID,"result":{},"RESULT":{}}`, `member "RESULT" is refused`},
	} {
		t.Run(name, func(t *testing.T) {
			stream := r.call(strconv.Quote(name), "say", strconv.Quote(test.says+"\n"))
			r.fails(stream, "", test.fails)
		})
	}
	stream := r.call("1", "say", strconv.Quote(`{"jsonrpc":"2.0","id":$ID,"result":{"a":1},"session":"other","params":{"_meta":1}}`+"\n"))
	commontest.EqualIn(t, "the client is told", `{"jsonrpc":"2.0","id":1,"result":{"a":1}}`, string(r.final(t, stream).Raw))
}

func TestClientTellsProgressOfItsOwnQuestionsOnly(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	const init = `{"sampling":{}}`
	asks := `{"jsonrpc":"2.0","id":0,"method":"sampling/createMessage","params":{"_meta":{"progressToken":0}}}`
	call := c.callAs("ann/1", "1", "say", strconv.Quote(asks+"\n"), withInit(init))
	c.hear("ann/1", call) // the question
	for _, session := range []string{"mallory/1", "ann/1"} {
		c.as(session, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":1,"message":"`+session+`"}}`)
	}
	c.as("mallory/1", `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"progressToken":2}}}`)
	var said []string
	for _, line := range c.lines("ann/1") {
		switch method, _ := wire.String(wire.Lookup(line, "method")); method {
		case wire.NotifyProgress:
			message, _ := wire.String(wire.Lookup(line, "params", "message"))
			said = append(said, message)
		case "notifications/x":
			if token := string(wire.Lookup(line, "params", "_meta", "progressToken")); token == "2" {
				t.Error("a notification has the progress token of a call of another client")
			}
		}
	}
	if len(said) != 1 || said[0] != "ann/1" {
		t.Errorf("progress of the question was told by %q, want ann/1 alone", said)
	}
}
