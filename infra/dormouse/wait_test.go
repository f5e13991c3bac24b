package dormouse

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

func TestCallChecksItsArgumentsBeforeItSendsThem(t *testing.T) {
	t.Parallel()
	all, err := toolsOf(api.Tools{Tools: []json.RawMessage{json.RawMessage(`{"name":"add","inputSchema":{"type":"object","properties":{"a":{"type":"number","description":"the first"},"how":{"enum":["fast","slow"]}},"required":["a"]}}`)}})
	commontest.OK(t, err)
	for line, want := range map[string]string{
		"":             "without a, which it needs; add takes a=number [how=any]",
		"a=1 how=well": "enum",
		"a=1 how=fast": "",
	} {
		t.Run(line, func(t *testing.T) {
			c := &callCommand{Arguments: strings.Fields(line)}
			_, err := c.arguments(&terminal{}, all[0])
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", line, err, want)
			}
		})
	}
	answers := []string{"one", "1"}
	var said bytes.Buffer
	by := &terminal{err: &said, ask: func(question string, _ bool) (answer string, err error) {
		commontest.EqualIn(t, "it asks", "add needs a, a number (the first): ", question)
		answer, answers = answers[0], answers[1:]
		return answer, nil
	}}
	args, err := (&callCommand{}).arguments(by, all[0])
	if err != nil || string(args["a"]) != "1" || said.String() != "want a number\n" {
		t.Errorf("%v, %v, %q", args, err, said.String())
	}
}
