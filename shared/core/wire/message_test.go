package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestParseRefusesWhatIsNotJSON(t *testing.T) {
	for _, raw := range []string{
		"", " ", "{", `{"a"}`, `{"a":}`, `{"a":1,}`, `{,"a":1}`, `{a:1}`, `[1 2]`, `[1,]`, `[}`, `{]`, "]", "[1}", `{"a":1]`, `[{"a":[]]]`,
		`{"jsonrpc":"2.0","method":"m"} x`, `{"jsonrpc":"2.0","method":"m"}{}`, "nul", "tru", "truex",
		"01", "-", "1.", ".1", "1e", "1e+", "+1", "0x1", "NaN", `"`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`,
		"\"a\nb\"", "\"12345678\x01\"", "\"\x00\"", "\ufeff{}", "{}\x00", "\"\xff\"", "\"\xed\xa0\x80\"", "\xc3",
	} {
		t.Run(fmt.Sprintf("%q", raw), func(t *testing.T) {
			wantCode(t, raw, wire.CodeParse)
		})
	}
}

func TestParseRefusesWhatIsNotAMessage(t *testing.T) {
	for _, raw := range []string{
		`{}`, `[]`, `"x"`, `1`, manyMembers(65),
		`{"id":1,"method":"m"}`,
		`{"jsonrpc":"1.0","id":1,"method":"m"}`,
		`{"jsonrpc":2.0,"id":1,"method":"m"}`,
		`{"jsonrpc":"2.0","id":null,"method":"m"}`,
		`{"jsonrpc":"2.0","id":true,"method":"m"}`,
		`{"jsonrpc":"2.0","id":null,"result":{}}`,
		`{"jsonrpc":"2.0","result":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":1}`,
		`{"jsonrpc":"2.0","id":1,"method":null}`,
		`{"jsonrpc":"2.0","id":1}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","result":{}}`,
		`{"jsonrpc":"2.0","id":1,"error":"no"}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params":"x"}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params":null,"params":null}`,
		`{"jsonrpc":"2.0","id":1,"method":"notifications/cancelled","params":{"requestId":2}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","id":2}`,
		`{"jsonrpc":"2.0","method":"a","meth\u006fd":"b"}`,
	} {
		t.Run(raw, func(t *testing.T) { wantCode(t, raw, wire.CodeInvalidRequest) })
	}
}

// Parse refuses keys that a reader could take for another key, or that two readers could
// read in two ways.
func TestParseRefusesWhatReadersReadDifferently(t *testing.T) {
	top := func(keys string) string { return `{"jsonrpc":"2.0","id":1,"method":"tools/call",` + keys + `}` }
	params := func(keys string) string { return top(`"params":{` + keys + `}`) }
	meta := func(keys string) string { return params(`"_meta":{` + keys + `}`) }
	many := ""
	for i := range 100 {
		many += fmt.Sprintf(`"k%d":%d,`, i, i)
	}
	tests := []struct{ raw, want string }{
		{top(`"ID":7`), `member "ID" is refused, because a server could take it for "id": write "id"`},
		{top(`"Method":"m"`), `member "Method" is refused`},
		{top(`"PARAMS":{}`), `member "PARAMS" is refused`},
		{top(`"param\u017f":{}`), `member "paramſ" is refused`},
		{top(`"JſonRPC":"2.0"`), `member "JſonRPC" is refused`},
		{top(`"\u0130d":7`), `member "İd" is refused`},
		{top(`"id\u0000":7`), `member "id\x00" is refused`},
		{params(`"_meta":{"progressToken":7},"_meta":{}`), `key "_meta" comes twice in params of a method of MCP, send it once`},
		{params(`"_Meta":{"progressToken":7}`), `key "_Meta" of params of a method of MCP is refused, because a server could take it for "_meta": write "_meta"`},
		{params(`"name":"a","Name":"b"`), `key "Name" of`},
		{params(`"name":"a","n\u0061me":"b"`), `key "name" comes twice`},
		{params(`"x":1,"X":2`), `key "X" comes twice`},
		{params(`"k":1,"\u212a":2`), `comes twice`},
		{params(many + `"name":"a","K50":1`), `key "K50" comes twice`},
		{params(many + `"NAME":"a"`), `key "NAME" of`},
		{`{"jsonrpc":"2.0","method":"tools/call","params":{"Name":"a"}}`, `key "Name" of`},
		{params(`"__proto__":{"name":"b"}`), `key "__proto__" of`},
		{meta(`"__proto__":{"progressToken":7}`), `key "__proto__" of params._meta is refused`},
		{meta(`"ProgressToken":7`), `key "ProgressToken" of params._meta is refused`},
		{meta(`"progressToKen":7`), `key "progressToKen" of params._meta is refused`},
		{meta(`"progressToken":7,"progressToken":8`), `key "progressToken" comes twice in params._meta`},
		{meta(`"progressToken\u0000":7`), `of params._meta is refused`},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"RequestId":5}}`, `key "RequestId" of params is refused`},
		{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"PROGRESSTOKEN":5}}`, `key "PROGRESSTOKEN" of params is refused`},
	}
	for _, tt := range tests {
		t.Run(tt.raw, func(t *testing.T) {
			_, err := wire.Parse([]byte(tt.raw))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			wantCode(t, tt.raw, wire.CodeInvalidRequest)
		})
	}
}

func TestLineIsWrittenFromTheParts(t *testing.T) {
	for _, tt := range []struct{ raw, want string }{
		{"{\"x\":1,\"params\":{\"a\":\n \"b\\n\"}, \"m\\u0065thod\":\"m\\u0061\",\"id\":1.0,\"jsonrpc\":\"2.0\"}", `{"jsonrpc":"2.0","id":1.0,"method":"ma","params":{"a":"b\n"}}`},
		{`{"jsonrpc":"2.0","method":"m","x":1}`, `{"jsonrpc":"2.0","method":"m"}`},
		{`{"jsonrpc":"2.0","method":"m","params": null }`, `{"jsonrpc":"2.0","method":"m"}`},
		{`{"jsonrpc":"2.0","id":1,"method":"m","params":null}`, `{"jsonrpc":"2.0","id":1,"method":"m"}`},
		{`{"jsonrpc":"2.0","id":1,"method":"m","params":[ ]}`, `{"jsonrpc":"2.0","id":1,"method":"m"}`},
		{`{"result": null,"jsonrpc":"2.0","id":"a","i_d":2,"params":{}}`, `{"jsonrpc":"2.0","id":"a","result":null}`},
		{`{"error":{"code":1.0},"jsonrpc":"2.0","id":null}`, `{"jsonrpc":"2.0","id":null,"error":{"code":1.0}}`},
	} {
		m, err := wire.Parse([]byte(tt.raw))
		if got := string(m.Line()); err != nil || got != tt.want {
			t.Errorf("\n got %s, %v\nwant %s", got, err, tt.want)
		}
	}
}

func TestParseGivesTheIDOfARefusedMessage(t *testing.T) {
	tests := []struct{ name, raw, id string }{
		{"other version", `{"jsonrpc":"1.0","id":"a","method":"m"}`, `"a"`},
		{"bad params", `{"jsonrpc":"2.0","params":1,"method":"m","id":12345678901234567890}`, `12345678901234567890`},
		{"bad id", `{"jsonrpc":"2.0","id":{},"method":"m"}`, ``},
		{"a key that is nearly one before the id", `{"jsonrpc":"2.0","ID":1,"id":2,"method":"m"}`, `2`},
		{"params with a key twice", `{"jsonrpc":"2.0","method":"m","params":{"a":1,"a":1},"id":2}`, `2`},
		{"two ids", `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`, ``},
		{"not json", `{"jsonrpc":"2.0","id":1,`, ``},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := wire.Parse([]byte(tt.raw))
			if err == nil || string(m.ID) != tt.id {
				t.Errorf("got id %q and error %v, want id %q and an error", m.ID, err, tt.id)
			}
		})
	}
}

func TestParseBoundsNesting(t *testing.T) {
	message := func(levels int) string {
		return `{"jsonrpc":"2.0","method":"m","params":{"a":` + strings.Repeat("[", levels-2) + strings.Repeat("]", levels-2) + `}}`
	}
	_, err := wire.Parse([]byte(message(1000)))
	commontest.CheckIn(t, "1000 levels", err)
	wantCode(t, message(1001), wire.CodeParse)
	wantCode(t, strings.Repeat("[", 10_000_000), wire.CodeParse)
	wantCode(t, strings.Repeat(`{"a":`, 1_000_000), wire.CodeParse)
}

func TestParsedPartsCannotGrowIntoTheirNeighbours(t *testing.T) {
	raw := []byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":{}} tail`)
	m, err := wire.Parse(raw[:len(raw)-len(" tail")])
	commontest.OK(t, err)
	_ = append(m.ID, "xxx"...)
	_ = append(m.Params, "xxx"...)
	_ = append(m.Raw, "xxx"...)
	commontest.EqualIn(t, "appending to a part changed the input", `{"jsonrpc":"2.0","id":1,"method":"m","params":{}} tail`, string(raw))
}

func TestParseBody(t *testing.T) {
	const one = `{"jsonrpc":"2.0","method":"a"}`
	const two = `{"jsonrpc":"2.0","id":2,"result":["]",{}]}`
	tests := []struct {
		name, body string
		want       []string
		batch      bool
		code       wire.Code
	}{
		{"single", " " + one + "\n", []string{one}, false, 0},
		{"batch", "\n[ " + one + " ,\t" + two + " ] ", []string{one, two}, true, 0},
		{"batch of one", "[" + two + "]", []string{two}, true, 0},
		{"empty batch", " [ ] ", nil, true, wire.CodeInvalidRequest},
		{"bad element", "[" + one + ",1]", nil, true, wire.CodeInvalidRequest},
		{"batch in a batch", "[[" + one + "]]", nil, true, wire.CodeInvalidRequest},
		{"cut batch", "[" + one, nil, true, wire.CodeParse},
		{"empty body", "", nil, false, wire.CodeParse},
		{"bad utf-8", "{\"\xff\":1}", nil, false, wire.CodeParse},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			msgs, batch, err := wire.ParseBody([]byte(tt.body))
			if code(err) != tt.code || batch != tt.batch {
				t.Fatalf("got batch %v, error %v; want batch %v, code %d", batch, err, tt.batch, tt.code)
			}
			var raws []string
			for _, m := range msgs {
				raws = append(raws, string(m.Raw))
			}
			commontest.SameIn(t, "messages differ", tt.want, raws)
		})
	}
}

func TestParseBodyGivesTheIDOfARefusedSingleMessage(t *testing.T) {
	msgs, _, err := wire.ParseBody([]byte(`{"jsonrpc":"2.0","id":5}`))
	if code(err) != wire.CodeInvalidRequest || len(msgs) != 1 || string(msgs[0].ID) != "5" {
		t.Errorf("got %v, %v", msgs, err)
	}
}

func TestSameID(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
	}{
		{`1`, `1`, true},
		{`1`, `"1"`, false},
		{`1`, `1.0`, false},
		{`9007199254740992`, `9007199254740993`, false},
		{`"a"`, `"a"`, true},
		{`"a"`, `"\u0061"`, true},
		{`"\u0061"`, `"\U0061"`, false},
		{`"a/b"`, `"a\/b"`, true},
		{`"\ud800"`, `"\ud801"`, false},
		{`"\ud800"`, `"\ud800"`, true},
		{`"\ud83d\ude00"`, `"😀"`, true},
		{``, ``, false},
		{`null`, `null`, false},
		{`1`, ``, false},
	}
	for _, tt := range tests {
		t.Run(tt.a+" and "+tt.b, func(t *testing.T) {
			for _, pair := range [][2]string{{tt.a, tt.b}, {tt.b, tt.a}} {
				commontest.EqualIn(t, fmt.Sprintf("SameID(%s, %s)", pair[0], pair[1]), tt.want, wire.SameID(token(pair[0]), token(pair[1])))
			}
		})
	}
}

// manyMembers is a valid notification with n top-level members.
func manyMembers(n int) string {
	var b strings.Builder
	b.WriteString(`{"jsonrpc":"2.0","method":"m"`)
	for i := range n - 2 {
		fmt.Fprintf(&b, `,"x%d":0`, i)
	}
	return b.String() + "}"
}

func wantCode(t *testing.T, raw string, want wire.Code) {
	t.Helper()
	if _, err := wire.Parse([]byte(raw)); code(err) != want {
		t.Errorf("got error %v, want code %d", err, want)
	}
}

func code(err error) wire.Code {
	var e *wire.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func token(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}
