package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestMembersComeInOrderWithTheirValues(t *testing.T) {
	type member struct{ Key, Value string }
	for raw, want := range map[string][]member{
		`{}`: nil,
		` { "a" : 1 , "b":{"c":[2,"}"]},"a":"x" } `: {{"a", "1"}, {"b", `{"c":[2,"}"]}`}, {"a", `"x"`}},
	} {
		var got []member
		ok := wire.Members([]byte(raw), func(key string, value json.RawMessage) bool {
			got = append(got, member{key, string(value)})
			return true
		})
		if d := cmp.Diff(want, got); d != "" || !ok {
			t.Errorf("%s: %t (-want +got)\n%s", raw, ok, d)
		}
	}
}

func TestMembersStopsWhenItIsTold(t *testing.T) {
	n := 0
	if wire.Members([]byte(`{"a":1,"b":2}`), func(string, json.RawMessage) bool { n++; return false }) || n != 1 {
		t.Errorf("%d members", n)
	}
}

func TestMembersOfWhatIsNoObject(t *testing.T) {
	for _, raw := range []string{``, `[]`, `"x"`, `null`} {
		if wire.Members([]byte(raw), func(string, json.RawMessage) bool { t.Error("a member"); return true }) {
			t.Errorf("%q is an object", raw)
		}
	}
}

func TestTokensAreTheKeysAsTheyAreWritten(t *testing.T) {
	var got []string
	ok := wire.Tokens([]byte(` { "a" : 1, "\u0062":[2] } `), func(key []byte, value json.RawMessage) bool {
		got = append(got, string(key)+"="+string(value))
		return true
	})
	if d := cmp.Diff([]string{`"a"=1`, `"\u0062"=[2]`}, got); d != "" || !ok {
		t.Errorf("%t (-want +got)\n%s", ok, d)
	}
}

func TestElementsComeInOrder(t *testing.T) {
	for raw, want := range map[string][]string{
		`[]`:                                    nil,
		` [ 1 , "a,]" ,{"b":[2,3]}, [ ],null] `: {`1`, `"a,]"`, `{"b":[2,3]}`, `[ ]`, `null`},
	} {
		var got []string
		all := wire.Elements([]byte(raw), func(value json.RawMessage) bool {
			got = append(got, string(value))
			return true
		})
		if d := cmp.Diff(want, got); d != "" || !all {
			t.Errorf("%s: %t (-want +got)\n%s", raw, all, d)
		}
	}
}

func TestElementsStopsWhenItIsTold(t *testing.T) {
	n := 0
	if wire.Elements([]byte(`[1,2]`), func(json.RawMessage) bool { n++; return false }) || n != 1 {
		t.Errorf("%d elements", n)
	}
	for _, raw := range []string{``, `{}`, `"x"`, `null`} {
		if wire.Elements([]byte(raw), func(json.RawMessage) bool { t.Error("an element"); return true }) {
			t.Errorf("%q is an array", raw)
		}
	}
}

func TestValid(t *testing.T) {
	for raw, want := range map[string]bool{`{"a":[1]}`: true, ` 1 `: true, ``: false, `{} {}`: false, `{"a"}`: false, "\"\xff\"": false} {
		if wire.Valid([]byte(raw)) != want {
			t.Errorf("%q is not %t", raw, want)
		}
	}
}
