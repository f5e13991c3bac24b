package bridge_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

const plainClient = `{"protocolVersion":"2025-06-18","capabilities":{"roots":{"listChanged":true},"sampling":{},"elicitation":{},"tasks":{},"x":[1.0]},"clientInfo":{"name":"<c>","version":"1"}}`

func TestAModernServerIsToldOfTheClientWithEachRequest(t *testing.T) {
	const said = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{},"sampling":{},"elicitation":{"form":{}},"x":[1.0]},"io.modelcontextprotocol/clientInfo":{"name":"<c>","version":"1"}`
	tests := []struct {
		name, method, params, level string
		later                       bool
		want                        string
	}{
		{"without params", "tools/list", ``, "", false, `{"_meta":{` + said + `}}`},
		{"with the level it set", "tools/list", `{}`, "info", false, `{"_meta":{` + said + `,"io.modelcontextprotocol/logLevel":"info"}}`},
		{
			"what it says itself stays, but for what is the era's own", "tools/call",
			`{"name":"n","arguments":{"n":9007199254740993},"_meta":{"progressToken":7,"io.modelcontextprotocol/related-task":{},"a/b":1.50},"task":{}}`, "", false,
			`{"name":"n","arguments":{"n":9007199254740993},"_meta":{"progressToken":7,"a/b":1.50,` + said + `}}`,
		},
		{"a task of an extension", "com.example/run", `{"task":{"n":1.50}}`, "", false, `{"task":{"n":1.50},"_meta":{` + said + `}}`},
		{"answers it was not asked for are not heard", "tools/call", `{"name":"n","inputResponses":{"a":{}},"requestState":"s"}`, "", false, `{"name":"n","_meta":{` + said + `}}`},
		{"answers in a later round are", "tools/call", `{"name":"n","inputResponses":{"a":{}},"requestState":"s"}`, "", true, `{"name":"n","inputResponses":{"a":{}},"requestState":"s","_meta":{` + said + `}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := bridge.ReadLegacy(json.RawMessage(plainClient)).Params(tt.method, json.RawMessage(tt.params), tt.level, tt.later)
			commontest.Same(t, tt.want, string(got))
		})
	}
}

// A server that names only its own version (jonnyzzz/mcp-steroid#482) is of use to older clients.
func TestAnOlderClientIsToldItsOwnVersion(t *testing.T) {
	for _, tt := range []struct{ asked, named, want string }{
		{"2024-11-05", "2025-11-25", "2024-11-05"},
		{"2025-11-25", "2025-11-25", "2025-11-25"},
		{"2025-11-25", "2024-11-05", "2024-11-05"}, // the client knows older ones
		{"2024-10-07", "2025-11-25", "2025-11-25"}, // which we do not speak
	} {
		result := `{"protocolVersion": "` + tt.named + `","capabilities":{"x":1.0}}`
		want := `{"protocolVersion": "` + tt.want + `","capabilities":{"x":1.0}}`
		got := bridge.ReadLegacy(json.RawMessage(`{"protocolVersion":"` + tt.asked + `"}`)).Initialized(json.RawMessage(result))
		commontest.SameIn(t, tt.asked+", named "+tt.named, want, string(got))
	}
	commontest.EqualIn(t, "a result without a version became", `{}`, string(bridge.ReadLegacy(json.RawMessage(plainClient)).Initialized(json.RawMessage(`{}`))))
}

func TestInitializeIsAnsweredFromDiscover(t *testing.T) {
	discover := `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"extensions":{"t":{}}},"instructions":"be <kind>","ttlMs":1,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv","version":"9"}}}`
	for asked, version := range map[string]string{"2025-06-18": "2025-06-18", "2024-11-05": "2024-11-05", "2026-07-28": "2025-11-25", "1": "2025-11-25"} {
		want := `{"protocolVersion":"` + version + `","capabilities":{"tools":{"listChanged":true},"extensions":{"t":{}}},"serverInfo":{"name":"srv","version":"9"},"instructions":"be <kind>"}`
		got := bridge.ReadLegacy(json.RawMessage(`{"protocolVersion":"` + asked + `"}`)).Initialize(json.RawMessage(discover))
		commontest.SameIn(t, asked, want, string(got))
	}
	got := bridge.ReadLegacy(nil).Initialize(json.RawMessage(`{}`))
	commontest.EqualIn(t, "of a server that says nothing", `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"unknown","version":""}}`, string(got))
}

func TestResultsLoseWhatIsModern(t *testing.T) {
	for raw, want := range map[string]string{
		`{"resultType":"complete","tools":[{"n":1.0}],"ttlMs":5,"cacheScope":"public","nextCursor":"c"}`:  `{"tools":[{"n":1.0}],"nextCursor":"c"}`,
		`{"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}`:                      `{"content":[]}`,
		`{"content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{},"mine":9007199254740993},"x":{}}`: `{"content":[],"_meta":{"mine":9007199254740993},"x":{}}`,
		`7`: `7`,
	} {
		commontest.SameIn(t, raw, want, string(bridge.Plain("tools/list", json.RawMessage(raw))))
	}
	for _, tt := range [][3]string{
		{"resources/read", `{"code":-32602,"message":"no"}`, `{"code":-32002,"message":"no"}`},
		{"resources/read", `{"code":-32603,"message":"no"}`, `{"code":-32603,"message":"no"}`},
		{"tools/call", `{"code":-32602,"message":"no"}`, `{"code":-32602,"message":"no"}`},
	} {
		commontest.EqualIn(t, tt[1]+" of "+tt[0], tt[2], string(bridge.PlainFault(tt[0], json.RawMessage(tt[1]))))
	}
}

func message(t testing.TB, raw string) wire.Message {
	t.Helper()
	m, err := wire.Parse([]byte(raw))
	commontest.OK(t, err)
	return m
}

func TestProbeTellsWhetherAServerSpeaksTheModernEra(t *testing.T) {
	if m := message(t, string(bridge.Probe(json.RawMessage("1")))); m.Method != wire.MethodDiscover || wire.Lookup(m.Params, "_meta", wire.MetaClientCapabilities) == nil {
		t.Fatalf("the probe is %s", m.Raw)
	}
	for raw, want := range map[string]bool{
		`"result":{"supportedVersions":["2026-07-28"]}`:                             true,
		`"result":{"supportedVersions":["2026-07-28","2025-11-25"]}`:                true,
		`"result":{"supportedVersions":["2025-11-25"]}`:                             false,
		`"error":{"code":-32022,"message":"v","data":{"supported":["2026-07-28"]}}`: true,
		`"error":{"code":-32022,"message":"v","data":{"supported":["2099-01-01"]}}`: false,
		`"error":{"code":-32601,"message":"v"}`:                                     false,
	} {
		commontest.EqualIn(t, raw, want, bridge.ReadProbe(message(t, `{"jsonrpc":"2.0","id":1,`+raw+`}`)))
	}
}

func TestListenAsksForAllThatTheServerCanSend(t *testing.T) {
	l := bridge.ReadLegacy(nil)
	can := json.RawMessage(`{"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true}}}`)
	m := message(t, string(l.Listen(json.RawMessage("9"), can, []string{"file:///<a>"})))
	if m.Method != wire.MethodListen || string(m.ID) != "9" {
		t.Errorf("%s", m.Raw)
	}
	var filter map[string]any
	commontest.OK(t, json.Unmarshal(wire.Lookup(m.Params, "notifications"), &filter))
	want := map[string]any{"toolsListChanged": true, "resourcesListChanged": true, "resourceSubscriptions": []any{"file:///<a>"}}
	commontest.Same(t, want, filter)
	if raw := l.Listen(json.RawMessage("9"), json.RawMessage(`{"capabilities":{"tools":{},"resources":{"subscribe":true}}}`), nil); raw != nil {
		t.Errorf("a server with nothing to send is asked %s", raw)
	}
}

func TestNotificationsOfAListenStreamBecomePlain(t *testing.T) {
	for raw, want := range map[string]string{
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}`:                                                            ``,
		`{"jsonrpc":"2.0","method":"notifications/tasks","params":{}}`:                                                                                 ``,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":4}}}`:                `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
		`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":4,"a":1},"uri":"u"}}`: `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"a":1},"uri":"u"}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"d"}}`:                                                                     `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"d"}}`,
	} {
		commontest.SameIn(t, raw, want, string(bridge.PlainNotification(message(t, raw))))
	}
}

func TestACallForInputIsRead(t *testing.T) {
	for _, raw := range []string{`{}`, `{"resultType":"complete"}`, `{"resultType":1}`, `[]`} {
		if bridge.Wants(json.RawMessage(raw)) {
			t.Errorf("%s wants input", raw)
		}
	}
	result := json.RawMessage(`{"resultType":"input_required","content":null,"inputRequests":{"who":{"method":"elicitation/create","params":{"message":"?"}},"dirs":{"method":"roots/list"}},"requestState":"o\u0070aque"}`)
	inputs, state, fault := bridge.ReadInputs(result)
	want := []bridge.Input{{Key: "who", Method: "elicitation/create", Params: json.RawMessage(`{"message":"?"}`)}, {Key: "dirs", Method: "roots/list"}}
	if diff := cmp.Diff(want, inputs); diff != "" || fault != nil || string(state) != `"o\u0070aque"` || !bridge.Wants(result) {
		t.Errorf("state %s, %v: %s", state, fault, diff)
	}
	if inputs, state, fault = bridge.ReadInputs(json.RawMessage(`{"inputRequests":{},"requestState":"s"}`)); len(inputs) != 0 || fault != nil || string(state) != `"s"` {
		t.Errorf("load shedding: %v %s %v", inputs, state, fault)
	}
	for _, bad := range []string{
		`{}`, `{"inputRequests":{}}`, `{"inputRequests":[]}`, `{"requestState":7}`, `{"inputRequests":{"a":{"method":"tools/call"}}}`,
		`{"inputRequests":{"a":{}}}`, `{"inputRequests":{"a":7}}`, `{"inputRequests":{"a":{"method":"roots/list"},"a":{"method":"roots/list"}}}`,
	} {
		if _, _, fault := bridge.ReadInputs(json.RawMessage(bad)); fault == nil || fault.Code != wire.CodeInternal {
			t.Errorf("%s makes sense: %v", bad, fault)
		}
	}
}

func TestInputsBecomeQuestions(t *testing.T) {
	l := bridge.ReadLegacy(json.RawMessage(plainClient))
	stream := string(storage.NewStreamID())
	inputs := []bridge.Input{
		{Key: "who", Method: wire.MethodElicit, Params: json.RawMessage(`{"mode":"form","message":"<?>"}`)},
		{Key: "dirs", Method: wire.MethodRootsList, Params: json.RawMessage(`{}`)},
	}
	asked, raws, fault := l.Ask(stream, 2, 5, 1, inputs)
	want := []bridge.Asked{{ID: stream + ".2.5", Key: "who", Method: wire.MethodElicit, Of: 1}, {ID: stream + ".2.6", Key: "dirs", Method: wire.MethodRootsList, Of: 1}}
	if diff := cmp.Diff(want, asked); diff != "" || fault != nil {
		t.Error(diff, fault)
	}
	for i, want := range []string{
		`{"jsonrpc":"2.0","id":"` + stream + `.2.5","method":"elicitation/create","params":{"mode":"form","message":"<?>"}}`,
		`{"jsonrpc":"2.0","id":"` + stream + `.2.6","method":"roots/list"}`,
	} {
		commontest.Equal(t, want, string(raws[i]))
	}
	url := bridge.Input{Key: "u", Method: wire.MethodElicit, Params: json.RawMessage(`{"mode":"url","url":"https://x"}`)}
	can := bridge.ReadLegacy(json.RawMessage(`{"capabilities":{"elicitation":{"url":{}}}}`))
	if _, raws, fault = can.Ask(stream, 1, 1, 0, []bridge.Input{url}); fault != nil || string(wire.Lookup(raws[0], "params", "elicitationId")) != `"`+stream+`.1.1"` {
		t.Errorf("%s, %v", raws, fault)
	}
	for _, method := range []string{wire.MethodCreateMessage, wire.MethodRootsList, wire.MethodElicit} {
		if _, _, fault := bridge.ReadLegacy(nil).Ask(stream, 1, 1, 0, []bridge.Input{{Key: "k", Method: method}}); fault == nil {
			t.Errorf("a client without capabilities is asked for %s", method)
		}
	}
}

func TestTheSameRequestComesBackWithTheAnswers(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"n","arguments":{"x":1.0},"inputResponses":{"old":{}},"requestState":"old"}}`
	retry := bridge.Retry([]byte(call), json.RawMessage(`"n\u0065w"`))
	if want := `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"n","arguments":{"x":1.0},"requestState":"n\u0065w"}}`; string(retry) != want {
		t.Fatalf("to be sent again: %s", retry)
	}
	if got := bridge.Retry([]byte(call), nil); wire.Lookup(got, "params", "requestState") != nil {
		t.Errorf("a state that was not given is sent: %s", got)
	}
	questions := []storage.Question{
		{ID: "1", Key: "who", Method: wire.MethodElicit}, {ID: "2", Key: "llm", Method: wire.MethodCreateMessage}, {ID: "3", Key: "no", Method: wire.MethodElicit},
	}
	answers := []storage.Answer{
		{Question: "1", Raw: []byte(`{"jsonrpc":"2.0","id":"1","result":{"action":"accept","content":{"n":1.50}}}`)},
		{Question: "2", Raw: []byte(`{"jsonrpc":"2.0","id":"2","result":{"role":"assistant"}}`)},
		{Question: "3", Raw: []byte(`{"jsonrpc":"2.0","id":"3","error":{"code":-1,"message":"closed"}}`)},
	}
	got, fault := bridge.Again(retry, questions, answers)
	want := `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"n","arguments":{"x":1.0},"requestState":"n\u0065w","inputResponses":{"who":{"action":"accept","content":{"n":1.50}},"llm":{"role":"assistant"},"no":{"action":"cancel"}}}}`
	if diff := cmp.Diff(want, string(got)); diff != "" || fault != nil {
		t.Error(diff, fault)
	}
}

func TestWhatCannotBeSaidEndsTheCall(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`
	for name, tt := range map[string]struct {
		raw      string
		question storage.Question
		answer   string
		want     string
	}{
		"sampling that failed":          {call, storage.Question{ID: "q", Method: wire.MethodCreateMessage}, `{"jsonrpc":"2.0","id":"q","error":{"code":-1,"message":"no model"}}`, "no model"},
		"roots that are no object":      {call, storage.Question{ID: "q", Method: wire.MethodRootsList}, `{"jsonrpc":"2.0","id":"q","result":[]}`, "roots/list with no object"},
		"a question of no request":      {call, storage.Question{ID: "q", Method: wire.MethodRootsList, Of: 1}, `{"jsonrpc":"2.0","id":"q","result":{}}`, "no request"},
		"a request that cannot be read": {`{`, storage.Question{ID: "q", Method: wire.MethodRootsList}, `{"jsonrpc":"2.0","id":"q","result":{}}`, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			_, fault := bridge.Again([]byte(tt.raw), []storage.Question{tt.question}, []storage.Answer{{Question: "q", Raw: []byte(tt.answer)}})
			if fault == nil || fault.Code != wire.CodeInternal || !strings.Contains(fault.Message, tt.want) {
				t.Errorf("%v", fault)
			}
		})
	}
}

// The results must be valid messages, whatever a server, a client and a store say.
func FuzzSuspend(f *testing.F) {
	f.Add(`{"name":"n","_meta":{"progressToken":1}}`, `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{}}},"requestState":"s"}`, `{"action":"accept"}`, plainClient)
	f.Add(`{}`, `{"inputRequests":{"a":{"method":"roots/list"},"b":{"method":"sampling/createMessage"}}}`, `[]`, `{"capabilities":{"roots":{},"sampling":{}}}`)
	f.Add(`null`, `{"requestState":"s"}`, ``, `{}`)
	f.Fuzz(func(t *testing.T, params, result, answer, init string) {
		call, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`))
		for _, raw := range []string{result, init} {
			// Text that is not UTF-8 is refused earlier.
			if !json.Valid([]byte(raw)) || !utf8.ValidString(raw) || strings.TrimSpace(raw) != raw {
				return
			}
		}
		if err != nil {
			return
		}
		l := bridge.ReadLegacy(json.RawMessage(init))
		whole := func(what string, raw []byte) {
			if _, err := wire.Parse(raw); err != nil {
				t.Fatalf("%s is no message: %v: %s", what, err, raw)
			}
		}
		whole("request", wire.NewRequest(json.RawMessage("1"), "tools/call", l.Params("tools/call", call.Params, "info", true)))
		whole("result", wire.ResultResponse(json.RawMessage("1"), bridge.Plain("tools/call", json.RawMessage(result))))
		whole("initialize", wire.ResultResponse(json.RawMessage("1"), l.Initialize(json.RawMessage(result))))
		inputs, state, fault := bridge.ReadInputs(json.RawMessage(result))
		if fault != nil {
			return
		}
		asked, raws, fault := l.Ask("s", 1, 0, 0, inputs)
		if fault != nil {
			return
		}
		var answers []storage.Answer
		for i, raw := range raws {
			whole("question", raw)
			answers = append(answers, storage.Answer{Question: asked[i].ID, Raw: []byte(`{"jsonrpc":"2.0","id":"q","result":` + answer + `}`)})
		}
		again := bridge.Retry(call.Raw, state)
		whole("request to be sent again", again)
		raw, fault := bridge.Again(again, asked, answers)
		if fault == nil {
			whole("request with answers", raw)
			if got := wire.Lookup(raw, "params", "requestState"); string(got) != string(state) {
				t.Fatalf("the state %s comes back as %s", state, got)
			}
		}
	})
}
