package wire_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// heard lists what a line holds: messages in the right form, and other parts between < and >.
func heard(t *testing.T, line string) (all []string) {
	t.Helper()
	wire.Hear([]byte(line), func(m wire.Message, raw []byte, err error) {
		if err != nil {
			all = append(all, "<"+string(raw)+">")
			return
		}
		if _, err := wire.Parse(m.Raw); err != nil || bytes.ContainsAny(m.Raw, "\r\n") {
			t.Errorf("%q gives %s: %v", line, m.Raw, err)
		}
		all = append(all, string(m.Raw))
	})
	return all
}

func TestHearTakesWhatCanMeanOneThingOnly(t *testing.T) {
	const answer, note = `{"jsonrpc":"2.0","id":5,"result":{"a":"é"}}`, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	const fault = `{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"no"}}`
	for name, c := range map[string]struct {
		line string
		want []string
	}{
		"the right form":            {answer, []string{answer}},
		"nothing":                   {" \t\r", nil},
		"a byte order mark":         {"\uFEFF" + answer, []string{answer}},
		"NUL behind it":             {answer + "\x00", []string{answer}},
		"colours of each token":     {strings.ReplaceAll(answer, `"id"`, "\x1b[34m\"id\"\x1b[39;49m"), []string{answer}},
		"a banner without line end": {"Loading 100%" + answer, []string{"<Loading 100%>", answer}},
		"text behind it":            {answer + " done", []string{answer, "<done>"}},
		"two":                       {note + answer, []string{note, answer}},
		"a log in JSON before it":   {`{"level":"info"}` + answer, []string{`<{"level":"info"}>`, answer}},
		"a batch":                   {"[" + note + ",1," + answer + "]", []string{note, "<1>", answer}},
		"error null":                {`{"jsonrpc":"2.0","id":5,"result":{"a":"é"},"error":null}`, []string{answer}},
		"result null":               {`{"jsonrpc":"2.0","id":5,"result":null,"error":{"code":1,"message":"no"}}`, []string{fault}},
		"every member":              {`{"jsonrpc":"2.0","id":5,"method":null,"params":null,"result":{"a":"é"},"error":null}`, []string{answer}},
		"no version":                {`{"id":5,"result":{"a":"é"}}`, []string{answer}},
		"version 2":                 {`{"jsonrpc":2,"id":5,"result":{"a":"é"}}`, []string{answer}},
		"a note with params null":   {`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":null}`, []string{note}},
		"a note with id null":       {`{"jsonrpc":"2.0","id":null,"method":"notifications/tools/list_changed"}`, []string{note}},
		"no UTF-8":                  {strings.ReplaceAll(answer, "é", "\xff"), []string{strings.ReplaceAll(answer, "é", "\uFFFD")}},
		"a CR in it":                {"{\"jsonrpc\":\"2.0\",\r\"id\":5,\"result\":{\"a\":\"é\"}}", []string{answer}},
		"an escaped NUL stays":      {`{"jsonrpc":"2.0","id":5,"result":"\u0000\u001b[1m"}`, []string{`{"jsonrpc":"2.0","id":5,"result":"\u0000\u001b[1m"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			commontest.SameIn(t, name, c.want, heard(t, c.line))
		})
	}
}

func TestHearDoesNotGuess(t *testing.T) {
	for name, line := range map[string]string{
		"text":                       "Installing packages...",
		"a log in JSON":              `{"level":"info","msg":"x"}`,
		"an echo of a request":       `got {"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}`,
		"a message in another":       `{"msg":"sent","data":{"jsonrpc":"2.0","id":5,"result":{}}}`,
		"a message in a broken one":  `{"jsonrpc":"2.0","id":5,"result":[NaN,{"jsonrpc":"2.0","method":"notifications/message"}]}`,
		"cut short":                  `{"jsonrpc":"2.0","id":5,"result":{"a`,
		"version 1":                  `{"jsonrpc":"1.0","id":5,"result":{}}`,
		"a request with id null":     `{"jsonrpc":"2.0","id":null,"method":"roots/list"}`,
		"both a result and an error": `{"jsonrpc":"2.0","id":5,"result":{},"error":{}}`,
		"neither":                    `{"jsonrpc":"2.0","id":5,"error":null}`,
		"an id of two readers":       `{"jsonrpc":"2.0","id":5,"ID":6,"result":{}}`,
		"a result with id null":      `{"jsonrpc":"2.0","id":null,"result":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, part := range heard(t, line) {
				if part[0] != '<' {
					t.Errorf("%s: %s is taken for %s", name, line, part)
				}
			}
		})
	}
}

func TestIntegerReadsEveryFormOfANumber(t *testing.T) {
	for token, want := range map[string]int64{
		`5`: 5, `5.0`: 5, `5e0`: 5, `"5"`: 5, `"5.0"`: 5, `2.147483647E9`: 1<<31 - 1, `9007199254740991`: 1<<53 - 1,
		`9.007199254740991E15`: 1<<53 - 1, `-3.0`: -3, `"\u0035"`: 5,
	} {
		if n, ok := wire.Integer(json.RawMessage(token)); !ok || n != want {
			t.Errorf("%s is %d, %v; want %d", token, n, ok, want)
		}
	}
	for _, token := range []string{``, `null`, `5.5`, `""`, `"x"`, `"0x5"`, `"5_0"`, `"Inf"`, `"NaN"`, `"inf"`, `1e400`, `"1e30"`, `{}`, `[5]`, `" 5"`, `true`} {
		if n, ok := wire.Integer(json.RawMessage(token)); ok {
			t.Errorf("%s is %d", token, n)
		}
	}
}

// FuzzHear checks that what Hear takes is a message in the right form, and that a message
// in the right form is taken unchanged.
func FuzzHear(f *testing.F) {
	for _, seed := range []string{
		"\uFEFF" + `{"jsonrpc":"2.0","id":"5","result":{}}`,
		`Loading 100%{"jsonrpc":"2.0","id":5.0,"result":{},"error":null}`,
		`{"method":"ping","id":1}{"jsonrpc":2.0,"method":"notifications/message","id":null,"params":null}`,
		"\x1b[32m{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":null,\"error\":{}}\x1b[0m\x00",
		`[{"jsonrpc":"2.0","id":1,"method":"roots/list"},{"result":1}]`,
		`x{"a":1}{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":""}} y`,
		`{"jsonrpc":"2.0","id":7,"result":{"mean":NaN}}`, "{\"a\":\x00\"\xff\"}", `{`, `[[]]{"`, "\x1b]0;",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		input := bytes.Clone(line)
		count, whole := 0, wire.Message{}
		wire.Hear(line, func(m wire.Message, raw []byte, err error) {
			count++
			if err == nil {
				whole = m
				checkHeard(t, m)
			} else if len(raw) == 0 {
				t.Error("nothing is no message")
			}
		})
		if strict, err := wire.Parse(line); err == nil && (count != 1 || !bytes.Equal(strict.Line(), whole.Line())) {
			t.Errorf("a good message is heard as %d, %s", count, whole.Line())
		}
		commontest.EqualIn(t, "the input stays as it is", true, bytes.Equal(line, input))
	})
}

func checkHeard(t *testing.T, m wire.Message) {
	t.Helper()
	again, err := wire.Parse(m.Raw)
	if err != nil || again.Kind != m.Kind || again.Method != m.Method || !bytes.Equal(again.Line(), m.Line()) {
		t.Errorf("%s is read again as %+v, %v", m.Raw, again, err)
	}
	if bytes.ContainsAny(m.Line(), "\r\n") {
		t.Errorf("%q is more than a line", m.Line())
	}
}
