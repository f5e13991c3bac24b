package wire_test

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

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
			commontest.EqualIn(t, "the input became", tt.raw, string(before))
		})
	}
}

func TestAppendStringWritesWhatIsReadAgain(t *testing.T) {
	for s, want := range map[string]string{
		"": `""`, "plain": `"plain"`, "<&>": `"<&>"`, `a"b\c`: `"a\"b\\c"`, "line\n": `"line\n"`, "é": `"é"`, "\x7f": "\"\x7f\"", "\xff": `"\ufffd"`,
	} {
		got := wire.AppendString([]byte("x"), s)
		commontest.EqualIn(t, s, "x"+want, string(got))
		if back, ok := wire.String(got[1:]); !ok || back != strings.ToValidUTF8(s, "\ufffd") {
			t.Errorf("%s is read %q, %t", got[1:], back, ok)
		}
	}
}
