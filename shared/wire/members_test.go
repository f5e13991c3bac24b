package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/wire"
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
	if !wire.Members([]byte(`{"a":1,"b":2}`), func(string, json.RawMessage) bool { n++; return false }) || n != 1 {
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
