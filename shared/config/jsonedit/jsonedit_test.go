package jsonedit_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

const commented = `// Ours.
{
    "mcpServers": { // all of them
        "a": {"command": "x"}, // the first
        // before b
        "b": {
            "command": "y" /* why */
        }
        // the end
    },
    "other": 1e2
}
// below
`

func TestMemberIsSetAndAllElseStays(t *testing.T) {
	for _, c := range []struct{ name, text, path, value, want string }{
		{"nothing", "", "mcpServers a", `{"args":["-y","z"]}`, "{\n  \"mcpServers\": {\n    \"a\": {\n      \"args\": [\"-y\", \"z\"]\n    }\n  }\n}\n"},
		{"one line", `{"mcpServers":{"a":{"command":"x"}}}`, "mcpServers b", `{}`, "{\n  \"mcpServers\": {\n    \"a\": {\n      \"command\": \"x\"\n    },\n    \"b\": {}\n  }\n}\n"},
		{
			"last", commented, "mcpServers c", `{"command":"z"}`,
			strings.Replace(commented, "        }\n        // the end", "        },\n        \"c\": {\n            \"command\": \"z\"\n        }\n        // the end", 1),
		},
		{"replaced", commented, "mcpServers b", `{"command":"z"}`, strings.Replace(commented, `"y" /* why */`, `"z"`, 1)},
		{"in one line", commented, "mcpServers a env", `{"K":["v"]}`, strings.Replace(commented, `{"command": "x"}`, `{"command": "x", "env": {"K": ["v"]}}`, 1)},
		{"comma behind", "{\n\t\"a\": 1 , // one\n}", "b", "2", "{\n\t\"a\": 1 , // one\n\t\"b\": 2,\n}"},
		{"line ends", "{\r\n  \"a\": 1 // one\r\n}\r\n", "b", `{"c":2}`, "{\r\n  \"a\": 1, // one\r\n  \"b\": {\r\n    \"c\": 2\r\n  }\r\n}\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := jsonedit.Set([]byte(c.text), []byte(c.value), strings.Fields(c.path)...)
			commontest.OK(t, err)
			commontest.Same(t, c.want, string(got))
		})
	}
}

func TestErrorsNameTheMemberAndQuoteNothing(t *testing.T) {
	for text, want := range map[string]string{
		`{"a": hunter2}`:           "the file is not JSON",
		`["hunter2"]`:              "the file is not an object",
		`{"a": "hunter2"}`:         "a is not an object",
		`{"a": {"b": 1, "b": 2} }`: `a has "b" twice: remove one`,
	} {
		if _, err := jsonedit.Set([]byte(text), []byte("1"), "a", "b"); fmt.Sprint(err) != want {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
		if _, _, err := jsonedit.Get([]byte(text), "a", "b"); fmt.Sprint(err) != want {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
	got, ok, err := jsonedit.Get([]byte(commented), "mcpServers", "b")
	if err != nil || !ok || string(got) != `{"command":"y"}` {
		t.Error(string(got), ok, err)
	}
}

// FuzzEdit sets and deletes a member of any file. All other members must keep their
// values, and the new value must be there.
func FuzzEdit(f *testing.F) {
	for _, text := range []string{commented, "{}", `{"a":{"n":1}}`, "{\r\n \"n\" : {} , \r\n}", "{\"a\"/*x\n*/:1/*,*/,//}\n}", "{\n\"a\":1}"} {
		f.Add(text, "n")
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		before, ok, err := jsonedit.Get([]byte(text))
		var all map[string]json.RawMessage
		if err != nil || !ok || json.Unmarshal(before, &all) != nil || all == nil {
			return
		}
		set, err := jsonedit.Set([]byte(text), []byte(`{"k":["v"]}`), name)
		if err != nil {
			return // a name is there twice
		}
		key, _ := json.Marshal(name)
		var asWritten string
		_ = json.Unmarshal(key, &asWritten) // without bytes that are not UTF-8
		if asWritten != name {
			return
		}
		if got := members(t, set); got[name] != `{"k":["v"]}` {
			t.Fatalf("%q became %q", text, set)
		}
		deleted, err := jsonedit.Delete(set, name)
		commontest.OK(t, err)
		if _, ok := members(t, deleted)[name]; ok {
			t.Fatalf("%q became %q", set, deleted)
		}
		delete(all, name)
		for _, text := range [][]byte{set, deleted} {
			got := members(t, text)
			delete(got, name)
			if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(all))) {
				t.Fatalf("%q has other members", text)
			}
			for k, v := range got {
				if v != string(all[k]) {
					t.Fatalf("%q has %s = %s, want %s", text, k, v, all[k])
				}
			}
		}
	})
}

func members(t *testing.T, text []byte) map[string]string {
	t.Helper()
	value, _, err := jsonedit.Get(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	var all map[string]json.RawMessage
	commontest.OK(t, json.Unmarshal(value, &all))
	plain := map[string]string{}
	for k, v := range all {
		plain[k] = string(v)
	}
	return plain
}

func TestElementIsSetAndAllElseStays(t *testing.T) {
	const list = "{\n  \"a\": [\n    1, // one\n    \"two\", // two\n    3,\n  ]\n}\n"
	got, err := jsonedit.SetElement([]byte(list), []byte(`"2"`), 1, "a")
	if d := cmp.Diff(strings.Replace(list, `"two"`, `"2"`, 1), string(got)); err != nil || d != "" {
		t.Error(err, d)
	}
	for _, path := range []string{"b", "a"} {
		if _, err := jsonedit.SetElement([]byte(list), []byte(`1`), 3, path); err == nil {
			t.Errorf("an element of %s is set that is not there", path)
		}
	}
}
