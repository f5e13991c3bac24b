package bridge_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

func meta(more string) string {
	return `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}` + more + `}`
}

func request(t testing.TB, method, params string) bridge.Request {
	t.Helper()
	r, err := bridge.ReadRequest(message(t, `{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":`+params+`}`))
	commontest.OK(t, err)
	return r
}

func TestStripLeavesOutOnlyWhatIsModern(t *testing.T) {
	tests := []struct{ name, method, params, want string }{
		{"all of _meta", "tools/list", `{` + meta(``) + `}`, ``},
		{"what is its own of _meta", "tools/list", `{` + meta(`,"progressToken":1,"traceparent":"t","x.y/z":{"a":[1.0]}`) + `,"cursor":"c"}`, `{"_meta":{"progressToken":1,"traceparent":"t","x.y/z":{"a":[1.0]}},"cursor":"c"}`},
		{"rounds", "tools/call", `{"inputResponses":{"a":{}},"name":"n","requestState":"s",` + meta(``) + `}`, `{"name":"n"}`},
		{"rounds only where there are any", "custom/call", `{"inputResponses":{"a":{}},"requestState":"s",` + meta(``) + `}`, `{"inputResponses":{"a":{}},"requestState":"s"}`},
		{"digits and escapes", "tools/call", `{"arguments":{"n":9007199254740993,"f":1.50,"<\u00e9>":"\ud83d\ude00"},` + meta(``) + `}`, `{"arguments":{"n":9007199254740993,"f":1.50,"<\u00e9>":"\ud83d\ude00"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			commontest.Same(t, tt.want, string(bridge.Strip(tt.method, []byte(tt.params))))
			if got := request(t, tt.method, strings.Replace(tt.params, `,"requestState":"s"`, "", 1)); string(got.Forward()) != string(got.Params) {
				t.Errorf("%s is forwarded of %s", got.Forward(), got.Params)
			}
		})
	}
}

func TestRequestIsRefused(t *testing.T) {
	tests := map[string]string{
		"no params":                  ``,
		"no _meta":                   `{}`,
		"_meta that is no object":    `{"_meta":[]}`,
		"version that is no string":  `{"_meta":{"io.modelcontextprotocol/protocolVersion":1,"io.modelcontextprotocol/clientCapabilities":{}}}`,
		"client that is no object":   `{` + meta(`,"io.modelcontextprotocol/clientInfo":"me"`) + `}`,
		"answers that are no object": `{"inputResponses":[],` + meta(``) + `}`,
		"empty state":                `{"requestState":"",` + meta(``) + `}`,
		"token with a fraction":      `{` + meta(`,"progressToken":1.5`) + `}`,
	}
	for name, params := range tests {
		t.Run(name, func(t *testing.T) {
			m := wire.Message{Kind: wire.Request, ID: json.RawMessage("1"), Method: "tools/call"}
			if params != "" {
				m.Params = json.RawMessage(params)
			}
			_, err := bridge.ReadRequest(m)
			var rpc *wire.Error
			if !errors.As(err, &rpc) || rpc.Code != wire.CodeInvalidParams {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestResultKeepsWhatItHas(t *testing.T) {
	server := json.RawMessage(`{"name":"srv"}`)
	tests := []struct{ name, method, result, want string }{
		{"empty", "tools/call", `{}`, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}}`},
		{"another type", "tools/call", `{"resultType":"odd"}`, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}}`},
		{"its own caching", "resources/read", `{"ttlMs":5,"cacheScope":"public"}`, `{"ttlMs":5,"cacheScope":"public","resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}}`},
		{"its own _meta", "prompts/get", `{"_meta":{"a":1.0,"io.modelcontextprotocol/serverInfo":{"name":"own"}}}`, `{"_meta":{"a":1.0,"io.modelcontextprotocol/serverInfo":{"name":"own"}},"resultType":"complete"}`},
		{"more _meta", "prompts/get", `{"_meta":{"a":1}}`, `{"_meta":{"a":1,"io.modelcontextprotocol/serverInfo":{"name":"srv"}},"resultType":"complete"}`},
		{"digits", "tools/call", `{"structuredContent":{"n":9007199254740993}}`, `{"structuredContent":{"n":9007199254740993},"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			commontest.Same(t, tt.want, string(bridge.Result(tt.method, json.RawMessage(tt.result), server)))
		})
	}
}

func TestSealerSecretMustBeLong(t *testing.T) {
	if _, err := bridge.NewSealer(make([]byte, 31)); !errors.Is(err, storage.Invalid) {
		t.Errorf("got %v", err)
	}
}

func TestSealedIsReadByItsSecretOnly(t *testing.T) {
	sealer := func(secret string) *storage.Sealer {
		s, err := bridge.NewSealer([]byte(strings.Repeat(secret, 32)))
		commontest.OK(t, err)
		return s
	}
	sealed := sealer("a").Seal([]byte("plain"))
	if plain, ok := sealer("a").Open(sealed); !ok || string(plain) != "plain" {
		t.Errorf("got %q %v", plain, ok)
	}
	if again := sealer("a").Seal([]byte("plain")); again == sealed {
		t.Error("sealed twice the same")
	}
	if _, ok := sealer("b").Open(sealed); ok {
		t.Error("another secret opens it")
	}
	for i := range sealed {
		changed := []byte(sealed)
		if changed[i] = 'A'; sealed[i] == 'A' {
			changed[i] = 'B'
		}
		if plain, ok := sealer("a").Open(string(changed)); ok && string(plain) != "plain" {
			t.Errorf("changed at %d it says %q", i, plain)
		}
	}
}

func TestDigestIsOfMethodAndParams(t *testing.T) {
	base := request(t, "tools/call", `{"name":"n","arguments":{"a":1,"b":[true,null,"<"]},`+meta(``)+`}`).Digest()
	same := []bridge.Request{
		request(t, "tools/call", `{"arguments": {"b":[true,null,"\u003c"], "a":1}, "name":"n",`+meta(``)+`}`),
		request(t, "tools/call", `{"name":"n","arguments":{"a":1,"b":[true,null,"<"]},"inputResponses":{},"requestState":"x",`+meta(`,"progressToken":9`)+`}`),
	}
	for i, r := range same {
		if r.Digest() != base {
			t.Errorf("%d differs", i)
		}
	}
	for i, r := range []bridge.Request{
		request(t, "prompts/get", `{"name":"n","arguments":{"a":1,"b":[true,null,"<"]},`+meta(``)+`}`),
		request(t, "tools/call", `{"name":"n","arguments":{"a":1.0,"b":[true,null,"<"]},`+meta(``)+`}`),
		request(t, "tools/call", `{"name":"n","arguments":{"a":1,"b":[null,true,"<"]},`+meta(``)+`}`),
		request(t, "tools/call", `{"name":"n","arguments":{"a":9007199254740993},`+meta(``)+`}`),
		request(t, "tools/call", `{"name":"n","arguments":{"a":9007199254740992},`+meta(``)+`}`),
		request(t, "tools/call", `{"name":"n",`+meta(``)+`}`),
	} {
		if r.Digest() == base {
			t.Errorf("%d is the same", i)
		}
	}
}

func TestStateIsHeldToCallerTimeAndRequest(t *testing.T) {
	r := request(t, "tools/call", `{"name":"n",`+meta(``)+`}`)
	now := time.Unix(1000, 0)
	good := bridge.State{Session: "s", Stream: "d", Asked: map[string]string{"q": "roots/list"}, Digest: r.Digest(), Expires: 1000}
	if got, err := r.Resume(good.Encode(), "s", now); err != nil || got.Stream != "d" {
		t.Fatal(got, err)
	}
	if _, err := r.Resume(good.Encode(), "other", now); err == nil {
		t.Error("a call is resumed with the state of another caller")
	}
	if _, err := r.Resume(good.Encode(), "s", now.Add(time.Second)); err == nil {
		t.Error("a call is resumed with a state that has expired")
	}
	if _, err := request(t, "tools/call", `{"name":"m",`+meta(``)+`}`).Resume(good.Encode(), "s", now); err == nil {
		t.Error("a call is resumed with the state of another request")
	}
	if _, err := r.Resume([]byte("{"), "s", now); err == nil {
		t.Error("a call is resumed with what is no state")
	}
}

// script is a server that sends random events of one call. It knows which of its questions
// were answered.
type script struct {
	events   []storage.Event
	answered map[string]bool
}

// TestRoundsAlwaysEnd plays random calls to their end, over any number of rounds. The
// clients leave out answers, and sometimes repeat a round. Each response must have
// exactly the progress since the round before. At the end every question is answered, and
// the last response is the server's.
func TestRoundsAlwaysEnd(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { playRounds(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func playRounds(t *testing.T, rnd *rand.Rand) {
	s := &script{answered: map[string]bool{}}
	progress, total := 0, 3+rnd.IntN(12)
	say := func(raw string, final bool) {
		s.events = append(s.events, storage.Event{Index: storage.Index(len(s.events) + 1), Raw: []byte(raw), Final: final})
	}
	questions := 0
	// step lets the server send another event. It returns false when the server waits for an
	// answer or has ended.
	step := func() bool {
		open := 0
		for i := range questions {
			if !s.answered[fmt.Sprint("q", i)] {
				open++
			}
		}
		switch {
		case len(s.events) > 0 && s.events[len(s.events)-1].Final:
			return false
		case len(s.events) >= total && open == 0:
			say(`{"jsonrpc":"2.0","id":"stream","result":{"n":`+fmt.Sprint(questions)+`}}`, true)
		case open > 0 && rnd.IntN(2) == 0, len(s.events) >= total:
			return false
		case rnd.IntN(2) == 0:
			progress++
			say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":%d}}`, progress), false)
		default:
			say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create","params":{"message":"m","requestedSchema":{"properties":{"f%d":{}}}}}`, questions, rnd.IntN(3)), false)
			questions++
		}
		return true
	}
	state, inputs := bridge.State{}, ""
	for round := 0; ; round++ {
		if round > 200 {
			t.Fatal("it does not end")
		}
		params := `{"name":"n",` + meta(`,"progressToken":1`) + `}`
		if inputs != "" {
			params = `{"name":"n","inputResponses":{` + inputs + `},"requestState":"sealed",` + meta(`,"progressToken":1`) + `}`
		}
		turn := bridge.NewTurn(request(t, "tools/call", params), "stream", nil, state)
		answers, err := turn.Answers()
		commontest.OK(t, err)
		for _, a := range answers {
			s.answered[a.Question] = true
		}
		told, upTo, reply := drain(t, turn, s, state.From, step)
		if diff := cmp.Diff(s.progress(state.Seen, upTo), told); diff != "" {
			t.Fatal(diff)
		}
		if reply != nil {
			if reply.Code != 0 || !bytes.Contains(reply.Raw, fmt.Appendf(nil, `"n":%d`, questions)) {
				t.Fatalf("ended with %s", reply.Raw)
			}
			break
		}
		next := turn.State()
		inputs = answersTo(t, rnd, turn.Required("sealed"))
		if rnd.IntN(5) > 0 || state.Stream == "" { // otherwise the client repeats the previous round
			state = next
		}
	}
	for i := range questions {
		if !s.answered[fmt.Sprint("q", i)] {
			t.Errorf("q%d was not answered", i)
		}
	}
}

// progress returns the server's progress after one index up to another.
func (s *script) progress(after, upTo storage.Index) []string {
	var all []string
	for _, e := range s.events {
		if e.Index > after && e.Index <= upTo && bytes.Contains(e.Raw, []byte("notifications/progress")) {
			all = append(all, string(e.Raw))
		}
	}
	return all
}

// drain gives a turn the events after from. When there are no more, it lets the server go
// on, until the turn asks the client or has the client's answer. It returns the
// notifications to the client, and the index of the last event.
func drain(t *testing.T, turn *bridge.Turn, s *script, from storage.Index, step func() bool) (told []string, upTo storage.Index, reply *bridge.Response) {
	for upTo = from; ; upTo++ {
		for int(upTo) >= len(s.events) {
			if step() {
				continue
			}
			if !turn.Asks() {
				t.Fatal("the server waits, and the client is not asked")
			}
			return told, upTo, nil
		}
		got := turn.Take(s.events[upTo])
		switch {
		case got.Answer != nil:
			t.Fatalf("answered in the client's place: %s", got.Answer.Raw)
		case got.Notify != nil:
			told = append(told, string(got.Notify))
		case got.Reply != nil:
			return told, upTo, got.Reply
		}
	}
}

func answersTo(t *testing.T, rnd *rand.Rand, required []byte) string {
	var asked map[string]json.RawMessage
	if err := json.Unmarshal(wire.Lookup(required, "result", "inputRequests"), &asked); err != nil || len(asked) == 0 {
		t.Fatalf("nothing is asked: %s", required)
	}
	parts := []string{`"unknown":{"x":1}`}
	for key := range asked {
		if rnd.IntN(4) > 0 {
			parts = append(parts, `"`+key+`":{"action":"accept"}`)
		}
	}
	return strings.Join(parts, ",")
}

func FuzzReadRequestAndForward(f *testing.F) {
	for _, params := range []string{
		`{` + meta(``) + `}`, `{"name":"n","arguments":{"a":[1,2]},` + meta(`,"progressToken":"p"`) + `}`,
		`{"inputResponses":{"q":{"action":"accept"}},"requestState":"s",` + meta(`,"io.modelcontextprotocol/logLevel":"info"`) + `}`,
		`[]`, `{"_meta":{}}`, `{"_meta":{"\u0061":1},"_meta":7}`,
	} {
		f.Add(params)
	}
	f.Fuzz(func(t *testing.T, params string) {
		m, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + params + `}`))
		if err != nil {
			return
		}
		r, err := bridge.ReadRequest(m)
		if err != nil {
			return
		}
		forwarded := bridge.Strip(m.Method, r.Forward())
		if bytes.Contains(wire.Lookup(forwarded, "_meta"), []byte(`"io.modelcontextprotocol/protocolVersion"`)) && wire.Lookup(forwarded, "_meta", wire.MetaProtocolVersion) != nil {
			t.Errorf("the era is told: %s", forwarded)
		}
		if _, err := wire.Parse(wire.NewRequest(json.RawMessage("1"), m.Method, forwarded)); err != nil {
			t.Errorf("%s: %v", forwarded, err)
		}
		for _, key := range []string{"name", "arguments", "uri"} {
			commontest.Same(t, string(wire.Lookup(m.Params, key)), string(wire.Lookup(forwarded, key)))
		}
		if _, err := bridge.NewTurn(r, "s", nil, bridge.State{Asked: map[string]string{"q": wire.MethodElicit}}).Answers(); err == nil {
			_ = r.Digest()
		}
	})
}

func FuzzTurn(f *testing.F) {
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":"s","result":{}}`, `{"jsonrpc":"2.0","id":"s","error":{"code":-32042,"message":"m","data":{"elicitations":[{"url":"u"}]}}}`,
		`{"jsonrpc":"2.0","id":"s","error":{"code":"x"}}`, `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"mode":"url"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":[]}`, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1e999}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":7}}`, `{"jsonrpc":"2.0","id":"s","result":7}`, ``,
	} {
		f.Add(raw)
	}
	r := request(f, "tools/call", `{"name":"n",`+meta(`,"progressToken":1,"io.modelcontextprotocol/logLevel":"debug"`)+`}`)
	f.Fuzz(func(t *testing.T, raw string) {
		turn := bridge.NewTurn(r, "s", nil, bridge.State{})
		step := turn.Take(storage.Event{Index: 1, Raw: []byte(raw)})
		for _, out := range [][]byte{step.Notify, rawOf(step)} {
			if out == nil {
				continue
			}
			if _, err := wire.Parse(out); err != nil {
				t.Errorf("%q became %q: %v", raw, out, err)
			}
		}
		if turn.Asks() {
			if _, err := wire.Parse(turn.Required("sealed")); err != nil {
				t.Error(err)
			}
			_ = turn.State().Encode()
		}
		if a, ok := bridge.Unasked([]byte(raw)); ok {
			if _, err := wire.Parse(a.Raw); err != nil {
				t.Error(err)
			}
		}
	})
}

func rawOf(s bridge.Step) []byte {
	switch {
	case s.Reply != nil:
		return s.Reply.Raw
	case s.Answer != nil:
		return s.Answer.Raw
	}
	return nil
}
