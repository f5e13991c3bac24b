package bridge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
		{"another type", "tools/call", `{"resultType":"odd"}`, `{"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}}`},
		{"its own caching", "resources/read", `{"ttlMs":5,"cacheScope":"public"}`, `{"ttlMs":5,"cacheScope":"public","resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}}`},
		{"its own _meta", "prompts/get", `{"_meta":{"a":1.0,"io.modelcontextprotocol/serverInfo":{"name":"own"}}}`, `{"_meta":{"a":1.0,"io.modelcontextprotocol/serverInfo":{"name":"own"}},"resultType":"complete"}`},
		{"digits", "tools/call", `{"structuredContent":{"n":9007199254740993}}`, `{"structuredContent":{"n":9007199254740993},"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"srv"}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			commontest.Same(t, tt.want, string(bridge.Result(tt.method, json.RawMessage(tt.result), server)))
		})
	}
}

func TestSealedIsReadByItsSecretOnly(t *testing.T) {
	if _, err := bridge.NewSealer(make([]byte, 31)); !errors.Is(err, storage.Invalid) {
		t.Errorf("with a short secret: %v", err)
	}
	sealer := func(secret string) *storage.Sealer {
		s, err := bridge.NewSealer([]byte(strings.Repeat(secret, 32)))
		commontest.OK(t, err)
		return s
	}
	sealed := sealer("a").Seal([]byte("plain"))
	if plain, ok := sealer("a").Open(sealed); !ok || string(plain) != "plain" {
		t.Errorf("got %q %v", plain, ok)
	}
	if _, ok := sealer("b").Open(sealed); ok {
		t.Error("another secret opens it")
	}
	tickets, err := storage.NewSealer("ticket", []byte(strings.Repeat("a", 32)))
	commontest.OK(t, err)
	if _, ok := tickets.Open(sealed); ok {
		t.Error("a request state is taken for a ticket")
	}
}

func TestDigestIsOfMethodAndParams(t *testing.T) {
	base := request(t, "tools/call", `{"name":"n","arguments":{"a":1,"b":[true,null,"<"]},`+meta(``)+`}`).Digest()
	same := []bridge.Request{
		request(t, "tools/call", `{"arguments": {"b":[true,null,"\u003c"], "a":1}, "name":"n",`+meta(``)+`}`),
		request(t, "tools/call", `{"name":"n","arguments":{"a":1,"b":[true,null,"<"]},"inputResponses":{},"requestState":"x",`+meta(`,"progressToken":9`)+`}`),
	}
	for i, r := range same {
		commontest.EqualIn(t, fmt.Sprint("request ", i), base, r.Digest())
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
			_, err := wire.Parse(turn.Required("sealed"))
			commontest.Check(t, err)
			_ = turn.State().Encode()
		}
		if a, ok := bridge.Unasked([]byte(raw)); ok {
			_, err := wire.Parse(a.Raw)
			commontest.Check(t, err)
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
