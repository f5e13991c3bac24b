//go:build e2e

package box

import (
	"bufio"
	"encoding/json"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// Each script prints, as JSON, how it reads each line of its stdin.
const (
	nodeReader = `
const lines = require("node:readline").createInterface({ input: process.stdin, crlfDelay: Infinity });
const copy = (o) => (o && typeof o === "object" && !Array.isArray(o) ? Object.assign({}, o) : undefined);
lines.on("line", (line) => {
  const m = copy(JSON.parse(line)), params = copy(m.params), meta = copy(params?._meta);
  console.log(JSON.stringify({ ID: m.id, Method: m.method, Name: params?.name, Token: meta?.progressToken, RequestID: params?.requestId }));
});`
	pythonReader = `
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    params = m.get("params")
    params = params if isinstance(params, dict) else {}
    meta = params.get("_meta")
    meta = meta if isinstance(meta, dict) else {}
    found = {"ID": m.get("id"), "Method": m.get("method"), "Name": params.get("name"), "Token": meta.get("progressToken"), "RequestID": params.get("requestId")}
    print(json.dumps({k: v for k, v in found.items() if v is not None}))
`
)

func TestE2EReadersOfNodeAndPythonSeeWhatTheBoxBelieves(t *testing.T) {
	type nastyLine struct {
		raw, line []byte
		want      meaning
	}
	var all []nastyLine
	random := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // the same messages each time
	refused := each(t, *readers, func() []byte { return nasty(random) }, func(raw, line []byte, want meaning) {
		all = append(all, nastyLine{raw, line, want})
	})
	for name, command := range map[string][]string{
		"Node":   {"node", "-e", nodeReader},
		"Python": {"python3", "-X", "utf8", "-c", pythonReader},
	} {
		var input strings.Builder
		for _, n := range all {
			input.Write(append(n.line, '\n'))
		}
		var says strings.Builder
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...) //nolint:gosec // one of the above
		cmd.Stdin, cmd.Stderr = strings.NewReader(input.String()), &says
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, says.String())
		}
		answers := bufio.NewScanner(strings.NewReader(string(out)))
		answers.Buffer(nil, 1<<20)
		read := 0
		for ; answers.Scan(); read++ {
			if read == len(all) {
				t.Fatalf("%s has read more than %d lines", name, len(all))
			}
			commontest.Equal(t, all[read].want.values(), valuesOf(answers.Bytes()))
		}
		commontest.Equal(t, len(all), read)
		t.Logf("%s: %d messages, %d refused or answered in place, %d lines read as the box believes", name, *readers, refused, read)
	}
}

// values is a meaning in the form that other languages can give: strings decoded, numbers
// as floats. A name is there only for methods that have one in MCP.
type values struct{ id, method, name, token, requestID any }

func (m meaning) values() values {
	value := func(raw string) any {
		var v any
		if json.Unmarshal([]byte(raw), &v) != nil {
			return nil
		}
		switch v.(type) {
		case string, float64:
			return v
		default:
			return nil
		}
	}
	name, _ := value(m.Name).(string)
	return values{value(m.ID), m.Method, name, value(m.Token), value(m.RequestID)}
}

func valuesOf(line []byte) values {
	var m struct {
		ID, Name, Token, RequestID json.RawMessage
		Method                     string
	}
	_ = json.Unmarshal(line, &m) // what is missing differs
	got := meaning{string(m.ID), m.Method, string(m.Name), string(m.Token), string(m.RequestID)}
	if !named(got.Method) {
		got.Name = ""
	}
	return got.values()
}
