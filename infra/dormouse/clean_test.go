package dormouse

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/creack/pty"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// hostile sets the title and the clipboard, hides and forges lines, in all the forms that
// terminals know: by ESC, by C1 controls, in bytes that are no UTF-8, and by direction.
const hostile = "a\x1b]0;title\a\x1b]52;c;aGk=\x1b\\\x1b[2J\x1b[8m\u009b1A\x9b1A\u202eb\r\nforged\b\x7f\u2028\U000e0001"

// seen returns what a terminal gets from a command.
func seen(t *testing.T, print func(out io.Writer) error) string {
	t.Helper()
	master, tty, err := pty.Open()
	commontest.OK(t, err)
	defer func() { _ = master.Close() }()
	commontest.OK(t, pty.Setsize(tty, &pty.Winsize{Rows: 40, Cols: 500})) // no row takes several lines
	got := make(chan string)
	go func() {
		all, _ := io.ReadAll(master) // the error says that the terminal is closed
		got <- string(all)
	}()
	commontest.Check(t, print(onTerminal(tty)))
	_ = tty.Close()
	return strings.ReplaceAll(<-got, "\r\n", "\n") // the terminal adds \r
}

func TestNothingThatOthersWroteControlsTheTerminal(t *testing.T) {
	now := noon()
	for name, c := range map[string]struct {
		print func(out io.Writer) error
		lines int // 0: lines of the text may pass
	}{
		"sessions": {func(out io.Writer) error {
			return printSessions(out, []api.Session{{ID: "c3", Server: "s", Principal: hostile, Client: hostile}}, now)
		}, 2},
		"ps": {func(out io.Writer) error {
			r := report{}
			r.Processes = []api.Process{{Server: "s", State: "ready", Principal: hostile, Client: hostile}}
			return r.print(out, now, true, true)
		}, 0},
		"calls": {func(out io.Writer) error {
			return printCalls(out, []api.Call{{Server: "s", Tool: hostile, Client: hostile, Principal: hostile}}, now)
		}, 2},
		"tools": {func(out io.Writer) error {
			raw, err := json.Marshal(map[string]any{"name": hostile, "description": hostile, "inputSchema": map[string]any{"properties": map[string]any{hostile: map[string]any{}}}})
			return errors.Join(err, printTools(out, api.Tools{Tools: []json.RawMessage{raw}}))
		}, 2},
		"import": {func(out io.Writer) error {
			f := &edited{path: "servers.json"}
			return (&importCommand{}).print(out, f, []serversedit.Item{{Name: hostile, Was: hostile, Why: hostile, Absent: []string{hostile}}})
		}, 4},
		"logs": {func(out io.Writer) error {
			raw, err := json.Marshal(api.Output{Server: "s", Text: hostile})
			if err != nil {
				return err
			}
			_, err = (&logsCommand{}).print(&terminal{out: out, now: time.Now}, json.NewDecoder(bytes.NewReader(raw)))
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}, 0},
		"call": {func(out io.Writer) error {
			return printResult(out, &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: hostile}, &mcp.ResourceLink{URI: hostile}}})
		}, 0},
		"an error": {func(out io.Writer) error {
			execute([]string{"import", hostile}, &terminal{out: out, err: out, now: noon})
			return nil
		}, 0},
		"JSON": {func(out io.Writer) error { return (&terminal{out: out}).printJSON(hostile) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got := seen(t, c.print)
			if n := strings.Count(got, "\n"); c.lines > 0 && n != c.lines {
				t.Errorf("%d lines, want %d", n, c.lines)
			}
			if name == "call" || name == "logs" {
				if hid := strings.Index(got, "\x1b[8m"); hid < 0 || !strings.Contains(got[hid:], "\x1b[0m") {
					t.Error("colors do not pass, or do not end")
				}
				got = strings.NewReplacer("\x1b[8m", "", "\x1b[0m", "").Replace(got)
			}
			got = strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(got) // of states
			for _, r := range got {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Errorf("the terminal gets %q", got)
					break
				}
			}
		})
	}
}
