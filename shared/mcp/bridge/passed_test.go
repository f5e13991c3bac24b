package bridge_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// asksFor returns a server's question for fields of a form.
func asksFor(index storage.Index, id, fields string) storage.Event {
	return storage.Event{Index: index, Raw: []byte(`{"jsonrpc":"2.0","id":"` + id + `","method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{` + fields + `}}}}`)}
}

func take(turn *bridge.Turn, events ...storage.Event) (steps []bridge.Step) {
	for _, e := range events {
		steps = append(steps, turn.Take(e))
	}
	return steps
}

func keysOf(t *testing.T, required []byte) map[string]bool {
	t.Helper()
	var asked map[string]json.RawMessage
	commontest.OK(t, json.Unmarshal(wire.Lookup(required, "result", "inputRequests"), &asked))
	keys := map[string]bool{}
	for key := range asked {
		keys[key] = true
	}
	return keys
}

func TestQuestionForOneFieldIsCalledAfterIt(t *testing.T) {
	turn := bridge.NewTurn(request(t, "tools/call", `{"name":"n",`+meta(``)+`}`), "s", nil, bridge.State{})
	withdrawn := storage.Event{Index: 6, Raw: []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q-0"}}`)}
	take(turn, asksFor(1, "q-1", `"city":{}`), asksFor(2, "q-2", `"city":{}`), asksFor(3, "q-3", `"a":{},"b":{}`), asksFor(4, "q-4", ``), asksFor(5, "q-0", ``), withdrawn)
	commontest.SameIn(t, "keys", map[string]bool{"city": true, "q-2": true, "q-3": true, "q-4": true}, keysOf(t, turn.Required("s")))
	state := turn.State()
	params := `{"name":"n","requestState":"s","inputResponses":{"city":{"action":"decline"},"q-2":{"action":"accept","content":{}}},` + meta(``) + `}`
	retry := bridge.NewTurn(request(t, "tools/call", params), "s", nil, state)
	answers, err := retry.Answers()
	if err != nil || len(answers) != 2 || answers[0].Question != "q-1" || string(answers[0].Raw) != `{"jsonrpc":"2.0","id":"q-1","result":{"action":"decline"}}` || answers[1].Question != "q-2" {
		t.Errorf("%v, %s", err, answers)
	}
	// An open question keeps its key. The key of an answered one is not used again.
	take(retry, asksFor(1, "q-1", `"city":{}`), asksFor(2, "q-2", `"city":{}`), asksFor(3, "q-3", `"a":{},"b":{}`), asksFor(4, "q-4", ``), asksFor(7, "q-5", `"city":{}`))
	commontest.SameIn(t, "keys of the next round", map[string]bool{"q-3": true, "q-4": true, "q-5": true}, keysOf(t, retry.Required("s")))
}

func TestAnswerThatComesBeforeItsQuestionIsGivenOnce(t *testing.T) {
	params := `{"name":"n","inputResponses":{"city":{"action":"accept","content":{"city":"Oslo"}},"zip":7,"other":{}},` + meta(``) + `}`
	turn := bridge.NewTurn(request(t, "tools/call", params), "s", nil, bridge.State{})
	steps := take(turn, asksFor(1, "q-1", `"city":{}`), asksFor(2, "q-2", `"zip":{}`), asksFor(3, "q-3", `"city":{}`))
	if a := steps[0].Answer; a == nil || a.Question != "q-1" || string(a.Raw) != `{"jsonrpc":"2.0","id":"q-1","result":{"action":"accept","content":{"city":"Oslo"}}}` {
		t.Errorf("answered %v", a)
	}
	if steps[1].Answer != nil || steps[2].Answer != nil {
		t.Errorf("an answer that is none, or that was given, is given: %v", steps)
	}
	commontest.SameIn(t, "asked", map[string]bool{"zip": true, "city": true}, keysOf(t, turn.Required("s")))
}

func ended(result string) storage.Event {
	return storage.Event{Index: 1, Final: true, Raw: []byte(`{"jsonrpc":"2.0","id":"s","result":` + result + `}`)}
}

func TestCallForInputOfAModernServerIsPassedOn(t *testing.T) {
	const inputs = `"who":{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{"n":{}}}}}`
	for name, tt := range map[string]struct{ state, forwarded string }{
		"with a state":    {`,"requestState":"own\u0041"`, `{"name":"n","inputResponses":{"who":{"action":"accept"},"more":{}},` + meta(``) + `,"requestState":"own\u0041"}`},
		"without a state": {``, `{"name":"n","inputResponses":{"who":{"action":"accept"},"more":{}},` + meta(``) + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, "tools/call", `{"name":"n",`+meta(``)+`}`)
			turn := bridge.NewTurn(r, "s", json.RawMessage(`{"name":"srv"}`), bridge.State{})
			if step := turn.Take(ended(`{"resultType":"input_required","inputRequests":{` + inputs + `}` + tt.state + `}`)); step.Reply != nil || !turn.Asks() || !turn.Again() {
				t.Fatalf("%v", step)
			}
			state := turn.State()
			got := string(wire.Lookup(turn.Required("sealed"), "result"))
			want := `{"resultType":"input_required","inputRequests":{` + inputs + `},"requestState":"sealed","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}}`
			commontest.Same(t, want, got)
			state.Session, state.Expires = "me", time.Now().Add(time.Minute).Unix()
			retry := request(t, "tools/call", `{"name":"n","inputResponses":{"who":{"action":"accept"},"more":{}},"requestState":"sealed",`+meta(``)+`}`)
			opened, err := retry.Resume(state.Encode(), "me", time.Now())
			if err != nil || opened.Stream != "" {
				t.Fatal(opened, err)
			}
			again := bridge.NewTurn(retry, opened.Stream, nil, opened)
			if answers, err := again.Answers(); err != nil || len(answers) > 0 {
				t.Errorf("%v %v", answers, err)
			}
			if complete, agreed := again.Complete(); !complete || !agreed {
				t.Error("it is not to be sent again")
			}
			commontest.SameIn(t, "forwarded", tt.forwarded, string(again.Request().Forward()))
		})
	}
}

func TestInputThatAClientHasNotDeclaredIsNotPassedOn(t *testing.T) {
	turn := bridge.NewTurn(request(t, "tools/call", `{"name":"n",`+meta(``)+`}`), "s", nil, bridge.State{})
	step := turn.Take(ended(`{"resultType":"input_required","inputRequests":{"m":{"method":"sampling/createMessage","params":{}}}}`))
	if step.Reply == nil || step.Reply.Code != wire.CodeMissingCapability || turn.Asks() {
		t.Errorf("got %v", step.Reply)
	}
	turn = bridge.NewTurn(request(t, "tools/call", `{"name":"n",`+meta(``)+`}`), "s", nil, bridge.State{})
	if step := turn.Take(ended(`{"resultType":"input_required"}`)); step.Reply == nil || step.Reply.Code != wire.CodeInternal {
		t.Errorf("nonsense is answered with %v", step.Reply)
	}
}
