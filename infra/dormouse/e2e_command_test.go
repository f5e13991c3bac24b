//go:build e2e

package dormouse_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestE2EPSShowsWhatRuns(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil, "two": nil})
	m.start(sleepy()...)
	c := m.session("one")
	w := c.begin()
	w.progress(t, 1, 3)

	r := m.ps()
	if !r.Running || len(r.Boxes) != 1 || len(r.Sessions) != 1 {
		t.Fatalf("ps says %+v, want a running machine with one box and one session", r)
	}
	box, runner, server := r.Boxes[0], m.host(), m.only("stdio")
	if box.Server != "one" || box.PID != runner.pid {
		t.Errorf("box is %+v, want that of server one with pid %d", box, runner.pid)
	}
	if len(box.Processes) != 1 || box.Processes[0].PID != server.pid || !strings.Contains(box.Processes[0].Command, "stdio") {
		t.Errorf("processes are %+v, want stdio with pid %d", box.Processes, server.pid)
	}
	if s := r.Sessions[0]; s.ID != c.session || s.Server != "one" || s.Client != "e2e" || s.Version != "2025-11-25" || s.State != "ready" {
		t.Errorf("session is %+v", s)
	}
	m.psText("one", "local", "e2e", fmt.Sprint(runner.pid), fmt.Sprint(server.pid), "1 session")

	w.open(t)
	if _, err := w.response(w.id); err != nil {
		t.Fatal(err)
	}
	m.asleep()
	m.eventually(patience, "ps shows a running machine and the session alone", func() bool {
		r := m.ps()
		return r.Running && len(r.Boxes) == 0 && len(r.Sessions) == 1
	})
	m.interrupt()
	if r := m.ps(); r.Running || len(r.Sessions) != 1 {
		t.Errorf("after the end ps says %+v, want the session alone", r)
	}
	if out, err := m.command("sessions").Output(); err != nil || !strings.Contains(string(out), c.session[:12]) {
		t.Errorf("sessions, while nothing runs: %v\n%s", err, out)
	}
}

// psText checks that the output of ps for people has these words.
func (m *machine) psText(words ...string) {
	m.t.Helper()
	out, err := m.command("ps", "--all").Output()
	commontest.OKIn(m.t, "dormouse ps", err)
	for _, w := range words {
		if !strings.Contains(string(out), w) {
			m.t.Errorf("ps does not say %q:\n%s", w, out)
		}
	}
}

func TestE2ETerminalShowsWhatWakesAndSleeps(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.run(append(sleepy(), "-v")...)
	ready := m.awaitLine(m.log, patience, "the server is announced", func(line string) bool { return strings.HasPrefix(line, "  one  ") })
	m.urls["one"] = strings.Fields(ready)[1]
	m.session("one").text("count", "")
	shown := []string{"one starting client=", "one ready ", "one call client=", " tool=count ms=", "box.wake", "one asleep", "box.sleep"}
	if m.programs {
		shown = append(shown, "function.wake", "function.sleep")
	}
	for _, shown := range shown {
		m.awaitLine(m.log, asleepWithin, shown, func(line string) bool { return strings.Contains(line, shown) })
	}
	if lines, _ := m.out.lines(); len(lines) > 0 {
		t.Errorf("stdout is for programs, and got %q", lines)
	}
	kept := read(t, filepath.Join(m.data, "logs", "dormouse.jsonl"))
	for _, want := range []string{`"principal":"local"`, `"tool":"count"`, `"outcome":"done"`} {
		if !strings.Contains(kept, want) {
			t.Errorf("%s is not in the log file:\n%s", want, kept)
		}
	}
}

// refusal returns the answer to an initialize that the server refuses.
func (m *machine) refusal(url string) (status int, body string) {
	m.t.Helper()
	answer := web(m.t, http.DefaultClient, http.MethodPost, url, initialize, usual())
	return answer.status, answer.text
}

// The endpoint serves the Host of the public URL, which a proxy passes on from its
// clients.
func TestE2EBehindAReverseProxy(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	address := commontest.FreeAddress(t)
	m.start("--listen", address, "--sockets", "127.0.0.1:0", "--public-url", "https://mcp.example.com", "--access", "open")
	if m.urls["one"] != "https://mcp.example.com/one/mcp" {
		t.Errorf("clients are told to use %s", m.urls["one"])
	}
	for host, want := range map[string]struct {
		status int
		says   string
	}{
		"mcp.example.com":     {200, `"serverInfo"`},
		"mcp.example.com:443": {200, `"serverInfo"`},
		"other.example.com":   {403, "other.example.com is not served: start with --public-url https://other.example.com"},
	} {
		t.Run(host, func(t *testing.T) {
			got := web(t, http.DefaultClient, http.MethodPost, "http://"+address+"/one/mcp", initialize, usual("Host", host))
			if got.status != want.status || !strings.Contains(got.text, want.says) {
				t.Errorf("Host %s: %d %s", host, got.status, got.text)
			}
		})
	}
	m.await(patience, "the terminal says what to do", func(e event) bool {
		return e.Kind == "refused" && strings.Contains(e.Reason, "other.example.com is not served: start with --public-url https://other.example.com")
	})
}

// dormouse call uses the public URL, as clients do. If nothing answers there, it says so.
func TestE2ECallSaysThatThePublicAddressDoesNotAnswer(t *testing.T) {
	t.Parallel()
	m := newMachine(t, servers{"one": nil})
	m.start("--public-url", "http://127.0.0.1:1")
	out, err := m.command("call", "one", "echo", "text=hi").CombinedOutput()
	if want := "one does not answer: nothing answers at http://127.0.0.1:1/one/mcp: "; err == nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "refused") {
		t.Errorf("it says %s (%v), want %s", out, err, want)
	}
}
