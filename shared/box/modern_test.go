package box

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// takeModern is a server of 2026-07-28 only. Its first message decides what it speaks.
// After an initialize it refuses everything, as do real servers that keep the version of
// the first message.
func (f *fake) takeModern(m wire.Message) {
	first, _ := wire.String(wire.Lookup(f.seen[0], "method"))
	switch {
	case m.Kind != wire.Request:
	case m.Method == wire.MethodInitialize:
		say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeUnsupportedVersion, Message: "no", Data: map[string]any{"supported": []string{wire.V20260728}}})))
	case first == wire.MethodInitialize:
		say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeInvalidRequest, Message: "pinned"})))
	case m.Method == wire.MethodDiscover:
		if f.how == "modern but slow" {
			time.Sleep(600 * time.Millisecond)
		}
		answer(m.ID, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"ttlMs":1,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"2"}}}`)
	case m.Method == wire.MethodListen:
		id := string(m.ID)
		say(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}}}`)
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}}}`)
	case m.Method == wire.MethodToolsCall:
		name, _ := wire.String(wire.Lookup(m.Params, "name"))
		f.callModern(name, m)
	case m.Method == "test/seen":
		f.call("seen", m, nil)
	default:
		answer(m.ID, `{"resultType":"complete","method":"`+m.Method+`"}`)
	}
}

func (f *fake) callModern(name string, m wire.Message) {
	state, _ := wire.String(wire.Lookup(m.Params, "requestState"))
	asks := func(state string, inputs string) {
		answer(m.ID, `{"resultType":"input_required","content":null,"inputRequests":{`+inputs+`},"requestState":"`+state+`"}`)
	}
	const form = `{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}`
	switch {
	case name == "twice" && state == "":
		asks("one", `"a":`+form+`,"b":`+form)
	case name == "twice" && state == "one":
		asks("two", `"c":`+form)
	case name == "samples":
		asks("s", `"m":{"method":"sampling/createMessage","params":{}}`)
	case name == "nonsense":
		answer(m.ID, `{"resultType":"input_required"}`)
	case name == "busy for ever":
		answer(m.ID, `{"resultType":"input_required","requestState":"s"}`)
	default:
		answer(m.ID, `{"resultType":"complete","content":[],"params":`+string(m.Params)+`}`)
	}
}

// takeDual is a server that speaks both protocols. Its first message decides which. Its answer to
// server/discover has only the modern version, like that of SDKs.
func (f *fake) takeDual(m wire.Message) {
	first, _ := wire.String(wire.Lookup(f.seen[0], "method"))
	switch {
	case first == wire.MethodDiscover && m.Method == wire.MethodDiscover:
		answer(m.ID, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{}}`)
	case first == wire.MethodDiscover:
		f.takeModern(m)
	default:
		f.takeLegacy(m)
	}
}

// takeProbe is a server of the legacy era that gets server/discover.
func (f *fake) takeProbe(m wire.Message) {
	switch f.how {
	case "hangs when probed":
		block()
	case "passes over the probe":
	default:
		say(string(wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeMethodNotFound, Message: "no"})))
	}
}

// modernInit is the initialize of a client that can be asked with forms.
const modernInit = `{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}`

// deliverAs delivers a message of a client that can answer questions, for a round of its
// call.
func (r *rig) deliverAs(stream string, round int, raw string) string {
	return r.as("s", raw, func(d *frame.Deliver) {
		d.ID, d.Ticket, d.Round, d.Init, d.Level = storage.StreamID(stream), "t", round, json.RawMessage(modernInit), "info"
	})
}

// modern is a rig with a server that is known to be of 2026-07-28.
func modern(t *testing.T) *rig {
	t.Helper()
	return newRig(t, "modern", func(s *Server) { s.Era = wire.ModernOnly })
}

// asks waits for the events of a stream up to the one that suspends it.
func (r *rig) asks(stream string) (events []frame.Event, s *frame.Suspension) {
	r.t.Helper()
	for {
		e := r.event(r.t, stream)
		if events = append(events, e); e.Final {
			r.t.Fatalf("%s ended with %s", stream, e.Raw)
		}
		if e.Asks != nil {
			return events, e.Asks
		}
	}
}

func TestServerThatRefusesInitializeIsSpokenToInItsEra(t *testing.T) {
	r := newRig(t, "modern")
	r.deliverAs("d1", 0, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":`+modernInit+`}`)
	want := `{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"serverInfo":{"name":"fake","version":"2"}}`
	commontest.Same(t, want, string(r.result("d1")))
	h := find(t, r.recorder, "the handshake", isHandshake)
	commontest.EqualIn(t, "the handshake", "2025-06-18 "+want, h.Detail+" "+string(h.Payload))
	commontest.EqualIn(t, "it is taken for", wire.ModernOnly, r.Era())
	commontest.SameIn(t, "the process that serves was told", []string{wire.MethodDiscover, wire.MethodListen}, methods(r.seen()))
}

func TestServerThatIsWronglyTakenForModernIsSpokenToInItsEra(t *testing.T) {
	r := newRig(t, "", func(s *Server) { s.Env[behaviour], s.Era = "usual", wire.ModernOnly })
	commontest.Equal(t, `{"echo":"x"}`, string(r.result(r.call("1", "echo", `"x"`))))
	commontest.Equal(t, wire.LegacyOnly, r.Era())
}

func TestWhatTheModernEraHasNotIsAnsweredByTheBox(t *testing.T) {
	r := modern(t)
	for i, raw := range []string{
		`"method":"logging/setLevel","params":{"level":"debug"}`, `"method":"ping"`,
		`"method":"resources/subscribe","params":{"uri":"file:///a"}`, `"method":"resources/unsubscribe","params":{"uri":"file:///a"}`,
	} {
		stream := r.as("s", `{"jsonrpc":"2.0","id":1,`+raw+`}`, func(d *frame.Deliver) { d.Subscribed = []string{"file:///a"}[:min(1, i%3)] })
		commontest.EqualIn(t, raw, "{}", string(r.result(stream)))
	}
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	want := []string{wire.MethodDiscover, wire.MethodListen, wire.NotifyCancelled, wire.MethodListen, wire.NotifyCancelled, wire.MethodListen}
	lines := r.seen()
	commontest.Same(t, want, methods(lines))
	if first, stop := wire.Lookup(lines[1], "id"), wire.Lookup(lines[2], "params", "requestId"); !wire.SameID(first, stop) {
		t.Errorf("listen %s is cancelled as %s", first, stop)
	}
	commontest.EqualIn(t, "subscribed to", `["file:///a"]`, string(wire.Lookup(lines[3], "params", "notifications", "resourceSubscriptions")))
}

func TestCallThatNeedsInputIsSuspendedAndNothingOfItStays(t *testing.T) {
	r := modern(t)
	stream := string(storage.NewStreamID())
	call := `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"twice","arguments":{"x":1.0},"_meta":{"progressToken":"p"}}}`
	r.deliverAs(stream, 0, call)
	events, asks := r.asks(stream)
	want := []bridge.Asked{{ID: stream + ".1.0", Key: "a", Method: wire.MethodElicit}, {ID: stream + ".1.1", Key: "b", Method: wire.MethodElicit}}
	commontest.SameIn(t, "questions", want, asks.Questions)
	commontest.Equal(t, 2, len(events))
	if got := wire.Lookup(asks.Raw, "params", "requestState"); string(got) != `"one"` || !strings.HasPrefix(string(asks.Raw), call[:len(call)-2]) {
		t.Errorf("to be sent again: %s", asks.Raw)
	}
	commontest.Eventually(t, "nothing is in flight", func() bool { return r.idle() && len(r.Open()) == 0 && len(r.Questions()) == 0 })

	raw, fault := bridge.Again(asks.Raw, asks.Questions, []storage.Answer{
		{Question: want[0].ID, Raw: []byte(`{"jsonrpc":"2.0","id":"x","result":{"action":"accept","content":{"n":1.50}}}`)},
		{Question: want[1].ID, Raw: []byte(`{"jsonrpc":"2.0","id":"x","result":{"action":"decline"}}`)},
	})
	commontest.EqualIn(t, "fault", nil, fault)
	other := modern(t) // another box, later
	other.deliverAs(stream, 1, string(raw))
	_, asks = other.asks(stream)
	if len(asks.Questions) != 1 || asks.Questions[0].ID != stream+".2.0" || string(wire.Lookup(asks.Raw, "params", "requestState")) != `"two"` ||
		wire.Lookup(asks.Raw, "params", "inputResponses") != nil {
		t.Errorf("the second round asks %v, and is sent again as %s", asks.Questions, asks.Raw)
	}
	raw, _ = bridge.Again(asks.Raw, asks.Questions, []storage.Answer{{Question: stream + ".2.0", Raw: []byte(`{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":""}}`)}})
	r.deliverAs(stream, 2, string(raw)) // the first one again
	got := r.result(stream)
	commontest.EqualIn(t, "the last round was told", `{"c":{"action":"cancel"}}`, string(wire.Lookup(got, "params", "inputResponses")))
	commontest.EqualIn(t, "the last round was told", `{"x":1.0}`, string(wire.Lookup(got, "params", "arguments")))
}

func TestBatchIsSuspendedWhenAllOfItHasEndedOrAsks(t *testing.T) {
	r := modern(t)
	stream := string(storage.NewStreamID())
	r.deliverAs(stream, 0, `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"twice"}},`+
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo"}},{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"twice"}}]`)
	events, asks := r.asks(stream)
	commontest.EqualIn(t, "the first event ends", "2", string(wire.Lookup(events[0].Raw, "id")))
	commontest.EqualIn(t, "events, with the questions", 5, len(events))
	msgs, batch, err := wire.ParseBody(asks.Raw)
	if err != nil || !batch || len(msgs) != 2 || string(msgs[0].ID) != "1" || string(msgs[1].ID) != "3" {
		t.Errorf("to be sent again: %s", asks.Raw)
	}
	last := asks.Questions[3]
	commontest.EqualIn(t, "the last question", stream+".1.3", last.ID)
	commontest.EqualIn(t, "it is of the message", 1, last.Of)
}

func TestInputThatCannotBeHadEndsTheCall(t *testing.T) {
	r := modern(t)
	for _, tool := range []string{"samples", "nonsense"} { // its client has not declared sampling
		stream := r.deliverAs(tool, 0, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`"}}`)
		commontest.EqualIn(t, tool, wire.CodeInternal, r.fails(stream, PhaseToolCall, "").Code)
	}
}

func TestServerThatWantsToBeCalledAgainForEverIsGivenUp(t *testing.T) {
	inBubbleFrom(t, Server{Era: wire.ModernOnly}, func(t *testing.T, d dialogue) {
		call, calls := d.call("1", "t", "{}"), 0
		for !d.ended(call) {
			for _, line := range d.drain() {
				switch m, _ := wire.Parse(line); m.Method {
				case wire.MethodDiscover:
					d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{}}}`, m.ID))
				case wire.MethodToolsCall:
					calls++
					d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":"s"}}`, m.ID))
				}
			}
			time.Sleep(time.Second)
		}
		commontest.EqualIn(t, "after phase", PhaseToolCall, d.failure(call).Phase)
		commontest.EqualIn(t, "after calls", maxRetries+1, calls)
	})
}

func TestModernProcessOfSeveralSessionsIsToldOfEachClient(t *testing.T) {
	r := newRig(t, "modern", func(s *Server) { s.Scope = ScopeShared })
	for name, level := range map[string]string{"one": "", "two": "error"} {
		stream := r.as(name, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`, func(d *frame.Deliver) {
			d.Level, d.Init = level, json.RawMessage(`{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"`+name+`"}}`)
		})
		meta := wire.Lookup(r.result(stream), "params", "_meta")
		client, _ := wire.String(wire.Lookup(meta, wire.MetaClientInfo, "name"))
		if got, _ := wire.String(wire.Lookup(meta, wire.MetaLogLevel)); client != name || got != level {
			t.Errorf("a call of %s is made for %q at level %q", name, client, got)
		}
	}
	commontest.Equal(t, 1, len(r.Processes()))
}

func TestCancelReachesAModernServer(t *testing.T) {
	r := modern(t)
	r.result(r.deliverIn("s", "pid")) // it is ready
	call := r.deliver(`{"jsonrpc":"2.0","id":"mine","method":"tools/call","params":{"name":"busy for ever"}}`)
	r.deliver(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"mine"}}`)
	commontest.EqualIn(t, "code", wire.CodeCancelled, r.failure(call).Code)
	if told := methods(r.seen()); !slices.Contains(told, wire.NotifyCancelled) {
		t.Errorf("the server was told %v", told)
	}
}

// ask is a request of a modern client, as a delivery brings it.
func (r *rig) ask(session, stream, method, params string) string {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"x":1}`
	raw := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":{%s%s}}`, stream, method, params, meta)
	return r.as(session, raw, func(d *frame.Deliver) { d.ID, d.Init = storage.StreamID(stream), bridge.Superset(nil) })
}

func (r *rig) begun() (n int) {
	for _, v := range r.left() {
		if s, ok := v.(ProcessStatus); ok && s.State == Started {
			n++
		}
	}
	return n
}

func TestRequestOfAModernClientPassesToAModernServerAsItIs(t *testing.T) {
	r := newRig(t, "dual")
	got := r.result(r.ask("s", "d1", wire.MethodToolsCall, `"name":"echo","inputResponses":{"a":{}},"requestState":"mine",`))
	want := `{"resultType":"complete","content":[],"params":{"name":"echo","inputResponses":{"a":{}},"requestState":"mine","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"x":1}}}`
	commontest.Same(t, want, string(got))
	e := r.final(t, r.ask("s", "d2", wire.MethodToolsCall, `"name":"samples",`))
	want = `{"jsonrpc":"2.0","id":"d2","result":{"resultType":"input_required","content":null,"inputRequests":{"m":{"method":"sampling/createMessage","params":{}}},"requestState":"s"}}`
	if string(e.Raw) != want || e.Asks != nil {
		t.Errorf("it asks with %s", e.Raw)
	}
	commontest.Equal(t, 1, r.begun())
}

func TestRequestOfAModernClientIsPutAsALegacyServerKnowsIt(t *testing.T) {
	r := newRig(t, "refuses the probe")
	var seen []json.RawMessage
	commontest.OK(t, json.Unmarshal(r.result(r.ask("s", "d1", wire.MethodToolsCall, `"name":"seen","inputResponses":{"a":{}},"requestState":"mine",`)), &seen))
	if got := methods(seen); !slices.Equal(got, []string{wire.MethodInitialize, wire.NotifyInitialized, wire.MethodToolsCall}) {
		t.Fatalf("the process that serves was told %v", got)
	}
	if meta := wire.Lookup(seen[0], "params", "_meta"); wire.Lookup(meta, wire.MetaProtocolVersion) != nil {
		t.Errorf("initialize says %s", meta)
	}
	commontest.EqualIn(t, "the call says", `{"name":"seen","_meta":{"x":1}}`, string(wire.Lookup(seen[2], "params")))
}

// A modern client calls, and then a legacy one in another session. The box probes once.
func TestServerIsSpokenToInTheEraThatItAnswersIn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		how    string
		probe  time.Duration
		scope  Scope
		begun  []int // processes after each call
		era    wire.Era
		refuse bool
	}{
		"it refuses the probe":             {how: "refuses the probe", begun: []int{2, 3}, era: wire.LegacyOnly},
		"it hangs":                         {how: "hangs when probed", probe: 50 * time.Millisecond, begun: []int{2, 3}, era: wire.LegacyOnly},
		"it passes over the probe":         {how: "passes over the probe", probe: 3 * time.Second, begun: []int{1, 2}, era: wire.LegacyOnly},
		"it is asked for both in one life": {how: "modern but slow", probe: 3 * time.Second, begun: []int{1, 3}, era: wire.ModernOnly},
		"it speaks both":                   {how: "dual", begun: []int{1, 2}, era: wire.DualEra},
		"it has one process for all":       {how: "dual", scope: ScopeShared, begun: []int{1, 1}},
		"it refuses both":                  {how: "refuses", begun: []int{2}, refuse: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.how, func(s *Server) { s.ProbeTime, s.Scope = c.probe, c.scope })
			r.hurry()
			for i, want := range c.begun {
				stream := "modern client"
				if i == 0 {
					r.ask("one", stream, wire.MethodToolsCall, `"name":"echo",`)
				} else {
					stream = r.as("two", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`, func(d *frame.Deliver) { d.Init = json.RawMessage(modernInit) })
				}
				commontest.Equal(t, c.refuse, wire.Lookup(r.final(t, stream).Raw, "error") != nil)
				commontest.Equal(t, want, r.begun())
			}
			commontest.EqualIn(t, "it is taken for", c.era, r.Era())
		})
	}
}

func TestMethodsOfAModernClientAreRefusedToALegacyOne(t *testing.T) {
	r := modern(t)
	for _, method := range []string{wire.MethodDiscover, wire.MethodListen} {
		commontest.EqualIn(t, "code", wire.CodeMethodNotFound, r.failure(r.deliver(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"notifications":{}}}`)).Code)
	}
}
