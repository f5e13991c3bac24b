package wire_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestLookup(t *testing.T) {
	const raw = ` { "a" : {"b":[1,{"c":2}], "q\"}": "x\\" , "u\u006e":null},"n":-1.5e3,` +
		`"s":"]}\"","a.b":true,"d":1,"d":{"e":2},"":0}  `
	tests := []struct {
		name string
		path []string
		want string
	}{
		{"whole value", nil, strings.TrimSpace(raw)},
		{"array inside", []string{"a", "b"}, `[1,{"c":2}]`},
		{"key with quote and brace", []string{"a", `q"}`}, `"x\\"`},
		{"escaped key", []string{"a", "un"}, `null`},
		{"number", []string{"n"}, `-1.5e3`},
		{"string with brackets", []string{"s"}, `"]}\""`},
		{"dot in a key is no path", []string{"a.b"}, `true`},
		{"last of doubled keys", []string{"d"}, `{"e":2}`},
		{"through the last of doubled keys", []string{"d", "e"}, `2`},
		{"empty key", []string{""}, `0`},
		{"absent", []string{"x"}, ``},
		{"absent inside", []string{"a", "x"}, ``},
		{"through an array", []string{"a", "b", "c"}, ``},
		{"through a string", []string{"s", "x"}, ``},
		{"case counts", []string{"A"}, ``},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := wire.Lookup([]byte(raw), tt.path...)
			if string(got) != tt.want || (got == nil) != (tt.want == "") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLookupInNothingIsNil(t *testing.T) {
	for _, raw := range []string{"", "  ", "{}", "[]", "1"} {
		if got := wire.Lookup([]byte(raw), "a"); got != nil {
			t.Errorf("in %q: got %q", raw, got)
		}
	}
}

func TestWhatLookupFindsCannotGrowIntoTheRest(t *testing.T) {
	raw := []byte(`{"a":1,"b":2}`)
	_ = append(wire.Lookup(raw, "a"), "xxx"...)
	if string(raw) != `{"a":1,"b":2}` {
		t.Errorf("appending to the value changed its surroundings: %s", raw)
	}
}

func TestReplaceLeavesTheRestAlone(t *testing.T) {
	tests := []struct {
		name, raw, value string
		path             []string
		want             string
	}{
		{"id", `{ "id" : 1 , "x":1e400}`, `"r-7"`, []string{"id"}, `{ "id" : "r-7" , "x":1e400}`},
		{
			"progress token",
			`{"params":{"_meta":{"progressToken":9007199254740993,"<k>":"\u00e9"}}}`, `1`,
			[]string{"params", "_meta", "progressToken"},
			`{"params":{"_meta":{"progressToken":1,"<k>":"\u00e9"}}}`,
		},
		{"the doubled key that counts", `{"a":1,"a":2}`, `3`, []string{"a"}, `{"a":1,"a":3}`},
		{"whole value", "\t[1]\n", `{}`, nil, "\t{}\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := []byte(tt.raw)
			got, ok := wire.Replace(before, token(tt.value), tt.path...)
			if !ok || string(got) != tt.want {
				t.Errorf("got %s, %v; want %s", got, ok, tt.want)
			}
			if string(before) != tt.raw {
				t.Errorf("the input became %s", before)
			}
		})
	}
}

func TestCompactPutsAMessageOnOneLine(t *testing.T) {
	tests := []struct{ name, raw, want string }{
		{"indented", "{\n  \"a b\": [1,\r\n\t9007199254740993 ],\n \"s\":\"\\n \\\" <&>\u2028\"}\n", "{\"a b\":[1,9007199254740993],\"s\":\"\\n \\\" <&>\u2028\"}"},
		{"carriage return only", "{\r}", "{}"},
		{"one line stays as it is", `{ "a" : 1 }`, `{ "a" : 1 }`},
		{"nothing", ``, ``},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := wire.Compact([]byte(tt.raw)); string(got) != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAppendStringWritesWhatIsReadAgain(t *testing.T) {
	for s, want := range map[string]string{
		"": `""`, "plain": `"plain"`, "<&>": `"<&>"`, `a"b\c`: `"a\"b\\c"`, "line\n": `"line\n"`, "é": `"é"`, "\x7f": "\"\x7f\"", "\xff": `"\ufffd"`,
	} {
		got := wire.AppendString([]byte("x"), s)
		if string(got) != "x"+want {
			t.Errorf("%q is written %s, want %s", s, got[1:], want)
		}
		if back, ok := wire.String(got[1:]); !ok || back != strings.ToValidUTF8(s, "\ufffd") {
			t.Errorf("%s is read %q, %t", got[1:], back, ok)
		}
	}
}

func TestString(t *testing.T) {
	tests := []struct {
		raw, want string
		ok        bool
	}{
		{`"plain"`, "plain", true},
		{`""`, "", true},
		{`"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"`, "\"\\/\b\f\n\r\té😀", true},
		{`1`, "", false},
		{`null`, "", false},
		{`{}`, "", false},
		{``, "", false},
		{`"`, "", false},
		{`"a" `, "a", true},
		{`"a"b"`, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.raw, func(t *testing.T) {
			got, ok := wire.String(token(tt.raw))
			if got != tt.want || ok != tt.ok {
				t.Errorf("got %q, %v; want %q, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}
