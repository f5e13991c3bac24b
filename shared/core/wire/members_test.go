package wire_test

import (
	"slices"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestMembersComeInOrderWithTheirValues(t *testing.T) {
	for raw, want := range map[string][]string{
		`{}`: nil, ``: nil, `[]`: nil, `"x"`: nil, `null`: nil,
		` { "a" : 1 , "\u0062":{"c":[2,"}"]},"a":"x" } `: {"a=1", `b={"c":[2,"}"]}`, `a="x"`},
	} {
		var got []string
		for key, value := range wire.Members([]byte(raw)) {
			got = append(got, key+"="+string(value))
		}
		commontest.SameIn(t, raw, want, got)
	}
}

func TestElementsComeInOrder(t *testing.T) {
	for raw, want := range map[string][]string{
		`[]`: nil, ``: nil, `{}`: nil, `"x"`: nil, `null`: nil,
		` [ 1 , "a,]" ,{"b":[2,3]}, [ ],null] `: {`1`, `"a,]"`, `{"b":[2,3]}`, `[ ]`, `null`},
	} {
		var got []string
		for element := range wire.Elements([]byte(raw)) {
			got = append(got, string(element))
		}
		commontest.SameIn(t, raw, want, got)
	}
}

func TestElementsAreReplaced(t *testing.T) {
	for raw, want := range map[string]string{
		`{"a": {"b":[1, "x" ,[2]]} }`: `{"a": {"b":[<1>,<"x">,<[2]>]} }`,
		`{"a":{"b":[ ]}}`:             `{"a":{"b":[]}}`,
		`{"a":{"b":{}}}`:              `{"a":{"b":{}}}`,
		`{"a":[1]}`:                   `{"a":[1]}`,
	} {
		got := wire.ReplaceElements([]byte(raw), func(e []byte) []byte { return slices.Concat([]byte("<"), e, []byte(">")) }, "a", "b")
		commontest.EqualIn(t, raw, want, string(got))
	}
}

func TestValid(t *testing.T) {
	for raw, want := range map[string]bool{`{"a":[1]}`: true, ` 1 `: true, ``: false, `{} {}`: false, `{"a"}`: false, "\"\xff\"": false} {
		commontest.EqualIn(t, raw, want, wire.Valid([]byte(raw)))
	}
}
