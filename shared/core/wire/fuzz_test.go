package wire_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// FuzzParse compares Parse with encoding/json: both must accept the same messages, and
// find the same kind, id, method and params.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"\u0049d":2,"method":"m"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`,
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":-1.50e+3,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":"\u0061\"","method":"ping"}`,
		`{"json\u0072pc":"2.0","\u0069d":"a","method":"tools\/list"}`,
		"{ \"params\" :\t[ 1 ] ,\r\n\"method\": \"m\" , \"jsonrpc\" : \"2.0\" }",
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":"a","result":{}}`,
		`{"jsonrpc":"2.0","id":0,"result":null}`,
		`{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no"}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`,
		`{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","x":{"params":1},"y":2}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"id":1,"ID":2,"a":1,"a":2}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"mine/do","params":{"Name":"x","Level":1}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"_meta":{},"_Meta":{},"a":1,"A":2}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":["progressToken"],"x":{"_meta":{"a":1,"a":1}}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params":[{"id":1,"id":2}]}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params": [ ] }`, `{"jsonrpc":"2.0","id":1,"method":"m","params":null}`,
		`{"jsonrpc":"2.0","id":{},"method":"m"}`,
		`{"jsonrpc":"2.0","id":false,"error":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params":false}`,
		`{"jsonrpc":"2.0","method":"a","x":1,"y":2,"\u0078":3}`,
		manyMembers(64), manyMembers(65),
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","Name":"b"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"progressToken":1,"\u212a":2,"k":3,"a\u0000":1,"a\u0000b":2}}}`,
		`{"jsonrpc":"2.0","method":"m","params":{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1,"10":1,"11":1,"12":1,"13":1,"14":1,"15":1,"16":1,"17":1,"17":1}}`,
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"_meta":{"progressToken":"p"}}}`,
		`{"jsonrpc":"2.0","\u0069d":"\ud83d\ude00","method":"a\/b"}`,
		`{"jsonrpc":"2.0","method":"m","params":[1.5e-3,true,false,null,{},[]]}`,
		` {"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}} `,
		`{"jsonrpc":"2.0","id":1,"result":{"a":"` + strings.Repeat("x", 40) + `\\"},"x":1,"x":2}`,
		"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}", `[{}]`, `{"a":01}`, "\"1234567\x1f\"", `{"":[`,
		strings.Repeat("[", 1001) + strings.Repeat("]", 1001),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		input := bytes.Clone(raw)
		want, wantCode := reference(raw)
		got, err := wire.Parse(raw)
		if code(err) != wantCode {
			t.Fatalf("got error %v, want code %d", err, wantCode)
		}
		if err == nil {
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("message differs (-want +got):\n%s", diff)
			}
		}
		msgs, batch, bodyErr := wire.ParseBody(raw)
		if err == nil && (bodyErr != nil || batch || len(msgs) != 1) {
			t.Fatalf("as a body: %d messages, batch %v, error %v", len(msgs), batch, bodyErr)
		}
		if !bytes.Equal(raw, input) {
			t.Fatal("parsing changed its input")
		}
	})
}

// FuzzBatch checks that ParseBody reads each message of a batch as Parse reads it alone.
func FuzzBatch(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","method":"m"}`), []byte(`{"jsonrpc":"2.0","id":1,"result":"],["}`))
	f.Add([]byte(`1`), []byte(` [ ] `))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if !json.Valid(a) || !json.Valid(b) {
			return
		}
		first, errA := wire.Parse(a)
		second, errB := wire.Parse(b)
		body := bytes.Join([][]byte{[]byte("["), a, []byte(" ,"), b, []byte("]\n")}, nil)
		msgs, batch, err := wire.ParseBody(body)
		if !batch {
			t.Fatal("not taken for a batch")
		}
		if err != nil {
			// Inside an array a message is one level deeper. Only that may make a
			// difference.
			if errA == nil && errB == nil && code(err) != wire.CodeParse {
				t.Fatalf("two good messages make a bad batch: %v", err)
			}
			return
		}
		if diff := cmp.Diff([]wire.Message{first, second}, msgs); diff != "" {
			t.Fatalf("messages differ (-want +got):\n%s", diff)
		}
	})
}

// FuzzJSON compares the functions on raw values with encoding/json. On invalid JSON, those
// that need valid JSON must at least not fail.
func FuzzJSON(f *testing.F) {
	const tree = ` { "a" : {"b":[1,{"c":2}], "q\"}": "x\\" , "u\u006e":null},"n":-1.5e3,` +
		`"s":"]}\"","a.b":true,"d":1,"d":{"e":2},"":0}  `
	for _, path := range [][2]string{{"a", "b"}, {"a", `q"}`}, {"a", "un"}, {"a", "x"}, {"a.b", ""}, {"d", "e"}, {"s", "x"}, {"A", "b"}, {"", ""}} {
		f.Add([]byte(tree), path[0], path[1])
	}
	for _, raw := range []string{
		"", "[]", "1", `"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"`, `"`, `"a" `, `"a"b"`, "{\r}",
		"{\n  \"a b\": [1,\r\n\t9007199254740993 ],\n \"s\":\"\\n \\\" <&>\u2028\"}\n",
	} {
		f.Add([]byte(raw), "s", "")
	}
	f.Add([]byte(`{"params":{"_meta":{"a":1},"_meta":{"b" : "\u0062"}}}`), "params", "_meta")
	f.Add([]byte("{\r\n\"\\u0061\": {\"b\":[\"\\\\\",\"\\\"\"]\n}}"), "a", "b")
	f.Add([]byte(`"\ud800"`), "", "")
	f.Add([]byte(`{"a":{"`), "a", "b")
	f.Add([]byte(`{"a" 1,"`), "a", "b")
	f.Add([]byte(`{"a":`), "a", "b")
	f.Fuzz(func(t *testing.T, raw []byte, outer, inner string) {
		value := wire.Lookup(raw, outer, inner)
		same, ok := wire.Replace(raw, value, outer, inner)
		compact := wire.Compact(raw)
		s, isString := wire.String(raw)
		if !json.Valid(raw) || !utf8.Valid(raw) {
			return
		}
		if want := member(member(raw, outer), inner); !bytes.Equal(want, value) || (want == nil) != (value == nil) {
			t.Fatalf("lookup gives %q, encoding/json %q", value, want)
		}
		if !bytes.Equal(same, raw) || ok != (value != nil) {
			t.Fatalf("replaced by itself: %q, %v", same, ok)
		}
		other := json.RawMessage(`{"x":["\"}",1]}`)
		if changed, ok := wire.Replace(raw, other, outer, inner); ok {
			if !json.Valid(changed) || !bytes.Equal(wire.Lookup(changed, outer, inner), other) {
				t.Fatalf("after replacing: %s", changed)
			}
		}
		checkCompact(t, raw, compact)
		var want any
		if err := json.Unmarshal(raw, &want); err == nil {
			if text, ok := want.(string); ok && raw[0] == '"' && (text != s || !isString) {
				t.Fatalf("string %q, %v; encoding/json %q", s, isString, text)
			} else if !ok && isString {
				t.Fatalf("a string although it is %T", want)
			}
		}
	})
}

func checkCompact(t *testing.T, raw, compact []byte) {
	t.Helper()
	if !bytes.ContainsAny(raw, "\r\n") {
		if !bytes.Equal(compact, raw) {
			t.Fatalf("a single line changed to %q", compact)
		}
		return
	}
	var want bytes.Buffer
	if err := json.Compact(&want, raw); err != nil || !bytes.Equal(want.Bytes(), compact) {
		t.Fatalf("compact gives %q, encoding/json %q", compact, want.Bytes())
	}
}

// FuzzSSE writes an event and reads it back with reads of any size. It also reads
// arbitrary bytes, which must do no harm.
func FuzzSSE(f *testing.F) {
	f.Add("7/s", "message", int64(2000), []byte("{}"), false, []byte("data: x\r\rid:1\n\n"))
	f.Add("", "", int64(0), []byte(""), true, []byte("\ufeff: c\r\n\r\ndata\n\n"))
	f.Add("a\nb", "\x00", int64(-1), []byte("a\r\nb\rc\n"), false, []byte("retry: 10\nid: \x00\n\n"))
	f.Fuzz(func(t *testing.T, id, name string, ms int64, payload []byte, hasData bool, stream []byte) {
		e := wire.SSE{ID: id, Name: name, Retry: time.Duration(ms%1e9) * time.Millisecond, Data: payload, HasData: hasData}
		written := wire.AppendComment(wire.AppendSSE(nil, e), id)
		var want []wire.SSE
		if e = asRead(e); e.ID != "" || e.Retry != 0 || e.HasData {
			want = []wire.SSE{e}
		}
		got, err := readAll(bytes.NewReader(written), 1<<20)
		if diff := cmp.Diff(want, got); diff != "" || !errors.Is(err, io.EOF) {
			t.Fatalf("%q: error %v, events differ (-want +got):\n%s", written, err, diff)
		}
		whole, err := readAll(bytes.NewReader(stream), 16)
		single, singleErr := readAll(iotest.OneByteReader(bytes.NewReader(stream)), 16)
		if diff := cmp.Diff(whole, single); diff != "" || !errors.Is(singleErr, err) {
			t.Fatalf("byte by byte the stream reads differently: %v, %v\n%s", err, singleErr, diff)
		}
	})
}

// asRead returns the event as a reader of its wire form sees it.
func asRead(e wire.SSE) wire.SSE {
	strip := strings.NewReplacer("\r", "", "\n", "", "\x00", "")
	e.ID, e.Name = strip.Replace(e.ID), strip.Replace(e.Name)
	e.Retry = max(e.Retry, 0)
	e.HasData = e.HasData || len(e.Data) > 0
	e.Data = bytes.ReplaceAll(e.Data, []byte("\r\n"), []byte("\n"))
	e.Data = bytes.ReplaceAll(e.Data, []byte("\r"), []byte("\n"))
	if len(e.Data) == 0 {
		e.Data = nil
	}
	return e
}

// reference is Parse written with encoding/json.
func reference(raw []byte) (m wire.Message, refused wire.Code) {
	if !utf8.Valid(raw) || !json.Valid(raw) || depth(raw) > 1000 {
		return m, wire.CodeParse
	}
	fields, ok := members(raw)
	var version, method string
	if !ok || json.Unmarshal(fields["jsonrpc"], &version) != nil || version != "2.0" {
		return m, wire.CodeInvalidRequest
	}
	m = wire.Message{ID: fields["id"], Params: fields["params"], Result: fields["result"], Error: fields["error"]}
	m.Raw = bytes.Trim(raw, " \t\r\n")
	number, text := new(json.Number), new(string)
	goodID := string(m.ID) != "null" && (json.Unmarshal(m.ID, text) == nil || json.Unmarshal(m.ID, number) == nil)
	token, isCall := fields["method"]
	var array []any
	if absent := json.Unmarshal(m.Params, &array) == nil && len(array) == 0; isCall && absent { // null, or []
		m.Params = nil
	}
	switch {
	case isCall:
		ok = json.Unmarshal(token, &method) == nil && string(token) != "null" && m.Result == nil && m.Error == nil &&
			(m.ID == nil || goodID && !strings.HasPrefix(method, "notifications/")) && (m.Params == nil || m.Params[0] == '{')
		if m.Kind, m.Method = wire.Request, method; m.ID == nil {
			m.Kind = wire.Notification
		}
	case m.Result != nil:
		m.Kind, ok = wire.Response, goodID && m.Error == nil
	default:
		m.Kind, ok = wire.Response, m.Error != nil && m.Error[0] == '{' && (goodID || m.ID == nil || string(m.ID) == "null")
		if !goodID {
			m.ID = nil
		}
	}
	if !ok || isCall && !plainParams(m) {
		return m, wire.CodeInvalidRequest
	}
	return m, 0
}

// plainParams reports whether params, and _meta in them, have no key twice and no two keys
// that differ only in case.
func plainParams(m wire.Message) bool {
	names := "_meta progressToken requestId"
	if strings.Contains(" initialize tools/call prompts/get resources/read tools/list ", " "+m.Method+" ") {
		names += " name uri arguments cursor level task taskId protocolVersion capabilities clientInfo inputResponses requestState"
	}
	const metas = "progressToken io.modelcontextprotocol/protocolVersion io.modelcontextprotocol/clientCapabilities " +
		"io.modelcontextprotocol/clientInfo io.modelcontextprotocol/logLevel io.modelcontextprotocol/subscriptionId io.modelcontextprotocol/related-task"
	return plain(m.Params, names) && plain(member(m.Params, "_meta"), metas)
}

// plain reports the same for one object. A value that is no object is plain.
func plain(raw json.RawMessage, names string) bool {
	keys, _, _ := entries(raw)
	for i, key := range keys {
		for _, name := range strings.Fields(names) {
			if alike(key, name) && key != name {
				return false
			}
		}
		if key == "__proto__" || slices.ContainsFunc(keys[:i], func(other string) bool { return alike(key, other) }) {
			return false
		}
	}
	return true
}

// entries decodes the top level of valid JSON. ok is false if that is no object.
func entries(raw []byte) (keys []string, values []json.RawMessage, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, nil, false
	}
	for dec.More() {
		var value json.RawMessage
		key, err := dec.Token()
		if err := errors.Join(err, dec.Decode(&value)); err != nil {
			panic(err)
		}
		keys, values = append(keys, key.(string)), append(values, value)
	}
	return keys, values, true
}

// alike reports whether some reader may take two keys for one.
func alike(a, b string) bool {
	turkish := strings.NewReplacer("ı", "i", "İ", "i")
	a, _, _ = strings.Cut(a, "\x00")
	b, _, _ = strings.Cut(b, "\x00")
	return strings.EqualFold(turkish.Replace(a), turkish.Replace(b))
}

// members decodes the top level of an object. ok is false if raw is no object, or has
// doubled keys or more than 64.
func members(raw []byte) (fields map[string]json.RawMessage, ok bool) {
	keys, values, ok := entries(raw)
	fields = map[string]json.RawMessage{}
	for i, key := range keys {
		if fields[key] != nil {
			return nil, false
		}
		fields[key] = values[i]
	}
	for key := range fields {
		for _, name := range []string{"jsonrpc", "id", "method", "params", "result", "error"} {
			if alike(key, name) && key != name {
				return nil, false
			}
		}
	}
	return fields, ok && len(fields) <= 64
}

// member returns the value of the last member with this key, nil if there is none.
func member(raw json.RawMessage, key string) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	value, ok := fields[key]
	if ok && value == nil {
		return json.RawMessage("null")
	}
	return value
}

// depth returns how deep valid JSON is nested.
func depth(raw []byte) (deepest int) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for open := 0; ; {
		switch token, err := dec.Token(); {
		case err != nil:
			return deepest
		case token == json.Delim('{'), token == json.Delim('['):
			open++
			deepest = max(deepest, open)
		case token == json.Delim('}'), token == json.Delim(']'):
			open--
		}
	}
}
