package dormouse

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// shows returns what dormouse run writes to a pseudo-terminal of some columns when one
// server is started. end is the last thing that it writes.
func shows(t *testing.T, c says, columns uint16, env map[string]string, end string) string {
	t.Helper()
	master, tty, err := pty.Open()
	commontest.OK(t, err)
	defer func() { _ = master.Close() }()
	commontest.OK(t, pty.Setsize(tty, &pty.Winsize{Rows: 40, Cols: columns}))
	o := c.display(tty, func(name string) string { return env[name] })
	o.Version = "0.4.0"
	d := display.New(o)
	d.Start(display.Start{
		File: "servers.json", Who: "open to this machine only", Open: true, Clients: []string{"claude mcp add"},
		Servers: []display.Server{
			{Name: "everything", Address: "http://127.0.0.1:8787/everything/mcp", Tools: "11 tools"},
			{Name: "mine", Address: "http://127.0.0.1:8787/mine/mcp", Tools: "never started"},
			{Name: "weather", Why: "WEATHER_KEY is not set: set it in the environment, in .env beside the file, or with --env-file", Place: "servers.json:14:32"},
		},
	})
	d.Event(journal.Event{Kind: journal.ServerFailed, Name: "mine", Time: time.Date(2026, 11, 22, 12, 0, 0, 0, time.Local), Reason: "it says no", Hint: "dormouse logs mine"})
	got := until(t, master, end)
	d.Close()
	_ = tty.Close()
	return got
}

func TestRunIsPlainWhereItIsAskedTo(t *testing.T) {
	const red = "\x1b[31m"
	for name, test := range map[string]struct {
		env            map[string]string
		moves, colored bool
	}{
		"xterm": {map[string]string{"TERM": "xterm"}, true, true}, "NO_COLOR": {map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, true, false},
		"dumb": {map[string]string{"TERM": "dumb"}, false, false}, "CI": {map[string]string{"TERM": "xterm", "CI": "true"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := shows(t, says{}, 80, test.env, "logs mine\r\n")
			if strings.Contains(got, "\x1b[") != test.moves || strings.Contains(got, red) != test.colored {
				t.Errorf("%q", got)
			}
		})
	}
	if o := (says{}).display(io.Discard, func(string) string { return "" }); o.Form != display.Records || !o.Stamps || o.Color {
		t.Errorf("inside of another program: %+v", o)
	}
	if o := (says{}).display(io.Discard, func(name string) string { return map[string]string{"JOURNAL_STREAM": "8:1"}[name] }); o.Stamps {
		t.Error("the journal of systemd has the times already")
	}
}

func TestKeysAreReadWithoutEnter(t *testing.T) {
	master, tty, err := pty.Open()
	commontest.OK(t, err)
	defer func() { _, _ = master.Close(), tty.Close() }()
	// The terminal is not this test's own, so the check for that is left out.
	k := keyboardOf(tty)
	if k == nil {
		t.Fatal("the modes of the terminal cannot be set")
	}
	pressed := make(chan string)
	go k.read(map[byte]func(){'v': func() { pressed <- "v" }, 'q': func() { pressed <- "q" }})
	for _, key := range []string{"v", "q"} {
		if _, err := io.WriteString(master, "x"+key); err != nil {
			t.Fatal(err)
		}
		if got := <-pressed; got != key {
			t.Errorf("%s was taken for %s", key, got)
		}
	}
	k.giveBack()
	if file, err := os.Open(os.DevNull); err != nil || takeKeyboard(file) != nil {
		t.Error("no terminal was taken for one", err)
	}
}
