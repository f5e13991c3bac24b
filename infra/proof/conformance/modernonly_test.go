//go:build conformance

package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
)

// modernOnlyServer as the first argument makes this test's program a stdio server of
// 2026-07-28 only. It starts the server that the further arguments name, behind a filter.
// The filter refuses initialize, and reports no older version as supported. The
// everything-servers all speak other eras too. Their tools for 2025-11-25 that ask the
// client do so by requests to the client, so the filter has such tools of its own.
const modernOnlyServer = "modern-only-server"

func serveModernOnly(ctx context.Context, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	say := &lineWriter{w: os.Stdout}
	go func() {
		_ = eachLine(os.Stdin, func(line []byte) error { return toModern(line, in, say) })
		_ = in.Close() // the server then ends, and this program ends after it
	}()
	if err := eachLine(out, func(line []byte) error { return say.line(onlyModern(line)) }); err != nil {
		return err
	}
	return cmd.Wait()
}

// toModern passes a line to the server. It does not pass on initialize, which it refuses,
// nor calls of tools that ask.
func toModern(line []byte, server io.Writer, say *lineWriter) error {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name           string          `json:"name"`
			Arguments      asked           `json:"arguments"`
			InputResponses json.RawMessage `json:"inputResponses"`
		} `json:"params"`
	}
	known := json.Unmarshal(line, &m) == nil
	if ask, ok := m.Params.Arguments.question(m.Params.Name); known && ok && m.Method == "tools/call" {
		return say.line(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, ask.result(m.Params.InputResponses)))
	}
	if known && m.Method == "initialize" {
		return say.line(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"unsupported protocol version","data":{"supported":[%q]}}}`, m.ID, revision2026))
	}
	_, err := server.Write(append(line, '\n'))
	return err
}

// asked is the arguments of a tool that asks.
type asked struct {
	Prompt  string `json:"prompt"`
	Message string `json:"message"`
}

// question is the question of a tool, as an input request.
type question string

func (a asked) question(tool string) (q question, ok bool) {
	form := func(message, properties string) question {
		return question(fmt.Sprintf(`{"method":"elicitation/create","params":{"mode":"form","message":%q,"requestedSchema":{"type":"object","properties":{%s}}}}`, message, properties))
	}
	switch tool {
	case "test_sampling":
		return question(fmt.Sprintf(`{"method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":%q}}],"maxTokens":100}}`, a.Prompt)), true
	case "test_elicitation":
		return form(a.Message, `"username":{"type":"string"},"email":{"type":"string"}`), true
	case "test_elicitation_sep1034_defaults":
		return form("Defaults?", `"name":{"type":"string","default":"John Doe"},"age":{"type":"integer","default":30},"score":{"type":"number","default":95.5},`+
			`"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"},"verified":{"type":"boolean","default":true}`), true
	case "test_elicitation_sep1330_enums":
		const untitled = `"enum":["option1","option2","option3"]`
		const titled = `[{"const":"value1","title":"One"},{"const":"value2","title":"Two"},{"const":"value3","title":"Three"}]`
		return form("Which?", `"untitledSingle":{"type":"string",`+untitled+`},"titledSingle":{"type":"string","oneOf":`+titled+`},`+
			`"legacyEnum":{"type":"string","enum":["opt1","opt2","opt3"],"enumNames":["One","Two","Three"]},`+
			`"untitledMulti":{"type":"array","items":{"type":"string",`+untitled+`}},"titledMulti":{"type":"array","items":{"anyOf":`+titled+`}}`), true
	default:
		return "", false
	}
}

// result is the answer to a call: the input request, or the result if the call brings the
// responses.
func (q question) result(responses json.RawMessage) string {
	if responses == nil {
		return fmt.Sprintf(`{"resultType":"input_required","inputRequests":{"answer":%s}}`, q)
	}
	return fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":%q}]}`, responses)
}

// onlyModern removes the older versions from an answer to server/discover.
func onlyModern(line []byte) []byte {
	var m map[string]json.RawMessage
	var result map[string]json.RawMessage
	if json.Unmarshal(line, &m) != nil || json.Unmarshal(m["result"], &result) != nil || result["supportedVersions"] == nil {
		return line
	}
	result["supportedVersions"] = json.RawMessage(fmt.Appendf(nil, "[%q]", revision2026))
	var err error
	if m["result"], err = json.Marshal(result); err != nil {
		return line // it was JSON before
	}
	if changed, err := json.Marshal(m); err == nil {
		return changed
	}
	return line
}

// eachLine reads lines of up to 4 MiB.
func eachLine(r io.Reader, do func([]byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		if err := do(slices.Clone(lines.Bytes())); err != nil {
			return err
		}
	}
	return lines.Err()
}

// lineWriter writes whole lines, one at a time.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) line(raw []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(append(bytes.Clone(raw), '\n'))
	return err
}
