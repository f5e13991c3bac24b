package display_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var update = flag.Bool("update", false, "write what is shown into testdata")

func TestMain(m *testing.M) {
	time.Local = time.UTC // the lines have the time of the place
	os.Exit(m.Run())
}

// page is a Terminal and its screen.
type page struct {
	*display.Terminal
	t   *testing.T
	out output
}

// output keeps what was written. It has a lock, because the Terminal writes from a
// goroutine of its own.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// open runs a test in virtual time, which begins at midnight.
func open(t *testing.T, o display.Options, width int, test func(p *page)) {
	synctest.Test(t, func(t *testing.T) {
		p := &page{t: t}
		o.Out, o.Width, o.Version = &p.out, func() int { return width }, "0.4.0"
		p.Terminal = display.New(o)
		test(p)
		p.Close()
	})
}

// at sends an event with the present time to the Terminal, and waits until it is printed.
func (p *page) at(e journal.Event) {
	e.Time = time.Now()
	p.Event(e)
	synctest.Wait()
}

// lines returns what the screen shows.
func (p *page) lines() string {
	p.t.Helper()
	synctest.Wait()
	return seen(p.t, p.out.String())
}

// seen returns what a screen shows after it was sent text. It knows the sequences that
// package display uses, and fails the test for any other.
func seen(t *testing.T, text string) string {
	t.Helper()
	lines, row := []string{""}, 0
	column := 0
	for text != "" {
		switch {
		case strings.HasPrefix(text, "\x1b["):
			end := strings.IndexAny(text, "AJm")
			if end < 0 {
				t.Fatalf("an unknown sequence: %q", text[:min(len(text), 20)])
			}
			n := 0
			switch _, _ = fmt.Sscanf(text[2:end], "%d", &n); text[end] {
			case 'A':
				row -= n
			case 'J':
				lines, lines[row] = lines[:row+1], string([]rune(lines[row])[:column])
			}
			text = text[end+1:]
			continue
		case text[0] == '\r':
			column = 0
		case text[0] == '\n':
			row, column = row+1, 0
			if row == len(lines) {
				lines = append(lines, "")
			}
		default:
			r := []rune(text)[0]
			line := []rune(lines[row])
			lines[row] = string(append(line[:min(column, len(line))], append([]rune{r}, line[min(column+1, len(line)):]...)...))
			column++
			text = text[len(string(r)):]
			continue
		}
		text = text[1:]
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}

// start is the first block of a machine with three servers, one of which is not served.
func start() display.Start {
	cost := 0.00031
	return display.Start{
		File: "servers.json", Who: "open to holders of an API key", Cost: func() float64 { return cost },
		Servers: []display.Server{
			{Name: "everything", Address: "http://127.0.0.1:8787/everything/mcp", Tools: "11 tools"},
			{Name: "mine", Address: "http://127.0.0.1:8787/mine/mcp", Tools: "never started"},
			{Name: "old", Off: true},
			{Name: "weather", Why: "WEATHER_KEY is not set: set it in the environment, in .env beside the file, or with --env-file", Place: "servers.json:14:32"},
		},
		Console: "dormouse open", Clients: []string{"dormouse connect claude-code", "claude mcp add --transport http everything http://127.0.0.1:8787/everything/mcp"},
		Notes:     []string{"Callers need an API key: dormouse keys create NAME --server SERVER"},
		Preparing: []string{"mine"},
	}
}

// day sends the events of a few minutes.
func day(p *page) {
	p.Start(start())
	time.Sleep(12*time.Hour + 40*time.Minute + 8*time.Second)
	p.at(journal.Event{Kind: journal.BoxWake, Name: "mine", PID: 7})
	p.at(journal.Event{Kind: journal.ServerStarting, Name: "mine", Principal: "ada", Client: "claude-code", Session: "s1"})
	p.at(journal.Event{Kind: journal.ServerInstalling, Name: "mine", Process: "s1", Detail: "installing mcp-server-mine (PyPI)"})
	time.Sleep(20 * time.Second)
	p.at(journal.Event{Kind: journal.ServerReady, Name: "mine", Process: "s1", Duration: 900 * time.Millisecond, Detail: "3 tools", Session: "s1", Measured: journal.Measured{Install: 19600 * time.Millisecond}})
	time.Sleep(time.Second)
	p.at(journal.Event{Kind: journal.Call, Name: "mine", Principal: "ada", Client: "claude-code", Tool: "get_forecast", Session: "s1", Duration: 842 * time.Millisecond, Trace: "t1"})
	time.Sleep(2 * time.Second)
	p.at(journal.Event{Kind: journal.Call, Name: "mine", Principal: "bob", Client: "zed", Tool: "get_forecast", Session: "s2", Duration: 31 * time.Millisecond, Reason: "ZeroDivisionError: division by zero", Trace: "t2"})
	time.Sleep(31 * time.Second)
	p.at(journal.Event{Kind: journal.BoxWake, Name: "everything", PID: 8})
	p.at(journal.Event{Kind: journal.ServerStarting, Name: "everything", Principal: "bob", Client: "zed", Session: "s3"})
	p.at(journal.Event{Kind: journal.ServerFailed, Name: "everything", Phase: "process_start", Session: "s3", Reason: "everything needs npx, which is not installed"})
	p.at(journal.Event{Kind: journal.ServersChanged, Name: "servers.json", Detail: "+ notes   ~ mine (args; its 2 sessions go on)   - old"})
	p.at(journal.Event{Kind: journal.ServersRefused, Name: "servers.json", Reason: "9:3 a comma is missing; what was there before is still served"})
	p.at(journal.Event{Kind: journal.Refused, Reason: "mcp.example.com is not served", Trace: "t3"})
	p.at(journal.Event{Kind: journal.Refused, Name: "memory", Tenant: "acme", Principal: "bob", Reason: "this API key is not for memory; it is for notes", Measured: journal.Measured{Sender: journal.Sender{Key: "k7h2", Address: "192.0.2.7", Refusal: "forbidden"}}})
	p.at(journal.Event{Kind: journal.RefusedAgain, Name: "memory", Reason: "this API key is not for memory; it is for notes"})
	p.at(journal.Event{Kind: journal.Call, Name: "mine", Tenant: "acme", Principal: "bob", Tool: "look", Session: "s1", Reason: "too many calls: try again in 3 s", Measured: journal.Measured{Sender: journal.Sender{Key: "k7h2", Address: "192.0.2.7", Refusal: "rate"}}})
	p.at(journal.Event{Kind: journal.LogLost, Reason: "log lines are lost: the disk of .dormouse/logs is full", Hint: "free some room, or name another folder with --data"})
	p.at(journal.Event{Kind: journal.ServerRefused, Name: "mine", Detail: "network: evil.test was refused; add it to x-dormouse.box.network"})
	time.Sleep(120 * time.Second)
	p.at(journal.Event{Kind: journal.BoxSleep, Name: "mine", PID: 7, Duration: 140 * time.Second})
	p.at(journal.Event{Kind: journal.ServerAsleep, Name: "mine", Duration: 120 * time.Second})
	p.at(journal.Event{Kind: journal.BoxCrash, Name: "everything", PID: 8, Reason: "exit code 1; the cache cannot be written"})
}

// golden compares a text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		commontest.OK(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	commontest.OK(t, err)
	commontest.SameIn(t, path+" (-update accepts it)", string(want), got)
}

func TestADayOnAScreen(t *testing.T) {
	open(t, display.Options{Screen: true, Keys: true}, 80, func(p *page) {
		day(p)
		golden(t, "screen80.txt", p.lines())
	})
}

func TestTextsOfOthersDoNotControlTheScreen(t *testing.T) {
	const odd = "a\x1b[2J\r\u0085b"
	open(t, display.Options{Screen: true}, 300, func(p *page) {
		p.Start(display.Start{File: odd, Notes: []string{odd}, Servers: []display.Server{{Name: odd, Why: odd, Place: odd}}})
		p.Say(odd)
		p.at(journal.Event{Kind: journal.ServersRefused, Name: odd, Detail: odd, Reason: odd})
		p.at(journal.Event{Kind: journal.ToolsHeld, Name: odd, Detail: odd, Hint: odd, Lines: []string{odd}})
		got := p.lines()
		if strings.ContainsAny(got, "\x1b\r\u0085") {
			t.Errorf("the screen gets %q", got)
		}
		commontest.EqualIn(t, fmt.Sprintf("texts in %q", got), 13, strings.Count(got, "a [2J  b"))
	})
}

func TestADayInTheLogOfAnotherProgram(t *testing.T) {
	open(t, display.Options{Stamps: true}, 80, func(p *page) {
		day(p)
		golden(t, "records.txt", p.lines())
		commontest.EqualIn(t, "something is rewritten", false, strings.ContainsAny(p.out.String(), "\r\x1b"))
	})
	open(t, display.Options{}, 80, func(p *page) {
		day(p)
		if got := p.lines(); strings.Contains(got, "2000-") || !strings.Contains(got, "\nmine call principal=ada ") {
			t.Errorf("without times:\n%s", got)
		}
	})
}

func TestCallsThatAreTooFastAreSummed(t *testing.T) {
	open(t, display.Options{Screen: true}, 80, func(p *page) {
		p.Start(display.Start{File: "servers.json", Open: true})
		before := strings.Count(p.lines(), "\n")
		for i := range 50 {
			e := journal.Event{Kind: journal.Call, Name: "mine", Tool: "look", Principal: "local"}
			if i >= 45 {
				e.Name, e.Reason = "other", "no"
			}
			p.at(e)
		}
		commontest.EqualIn(t, "lines at once", 20, strings.Count(p.lines(), "\n")-before)
		time.Sleep(time.Second)
		want := "00:00:01            30 more calls in this second\n─ nothing runs · 0 sessions · 50 calls, 5 failed\n"
		if got := p.lines(); !strings.HasSuffix(got, want) || strings.Contains(got, "local") {
			t.Errorf("want at the end\n%s\ngot\n%s", want, got)
		}
		p.at(journal.Event{Kind: journal.Call, Name: "mine", Tool: "again"})
		commontest.Contains(t, "the next second", "again", p.lines())
	})
}

// blocked is a terminal whose user has pressed Ctrl-S, so writes to it wait.
type blocked chan struct{}

func (b blocked) Write(p []byte) (int, error) { <-b; return len(p), nil }

func TestAHeldTerminalHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(blocked)
		p := display.New(display.Options{Out: held, Screen: true})
		for range 10_000 {
			p.Event(journal.Event{Kind: journal.ServerAsleep, Name: "mine", Time: time.Now()})
		}
		begun := time.Now()
		p.Close()
		commontest.EqualIn(t, "the time that it took to close", time.Second, time.Since(begun))
		close(held)
	})
}
