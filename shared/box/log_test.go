package box

import (
	"io"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

type page struct {
	commontest.Lines
	closed atomic.Bool
}

func (p *page) Close() error {
	p.closed.Store(true)
	return nil
}

func (p *page) read() (string, bool) { return p.String(), p.closed.Load() }

func TestLogTellsTheLifeOfAProcess(t *testing.T) {
	t.Parallel()
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Env["API_KEY"] = "hunter22"
		s.Stderr = func(session string) io.WriteCloser {
			if session != "s" {
				t.Errorf("session %q", session)
			}
			return kept
		}
	})
	r.failure(r.call("1", "die", "0"))
	r.state(t, Exited)
	got, closed := kept.read()
	line := `--- \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z `
	want := regexp.MustCompile(`^` + line + `process \d+ of session s started\nout of cheese\n` + line + `process \d+ exited with code 3\n$`)
	if !want.MatchString(got) || !closed {
		t.Errorf("closed %v, it says:\n%s", closed, got)
	}
}

func TestPasswordOfTheMachinesProxyIsHidden(t *testing.T) {
	t.Parallel()
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Base = map[string]string{"https_proxy": "http://ada:hunter%2022@proxy.example:3128", "HTTP_PROXY": "bob:swordfish@proxy.example"}
		s.Stderr = func(string) io.WriteCloser { return kept }
	})
	r.call("1", "say", `"proxy.example refuses hunter 22, hunter%2022, swordfish and http://ada:hunter%2022@proxy.example:3128\n"`)
	r.failure(r.call("2", "die", "0"))
	r.state(t, Exited)
	if got := kept.String(); !strings.Contains(got, "stdout: proxy.example refuses ***, ***, *** and http://***@proxy.example:3128\n") {
		t.Error(got)
	}
}

// A server may exit with code 0 when its stdin is closed, so the code alone does not say
// whether the server ended by itself.
func TestLogTellsThatDormouseEndedAProcess(t *testing.T) {
	t.Parallel()
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) { s.Stderr = func(string) io.WriteCloser { return kept } })
	r.result(r.call("1", "pid", "0"))
	r.Halt("", "ada", 0)
	r.state(t, Stopped)
	if got, _ := kept.read(); !regexp.MustCompile(`process \d+ (exited with code 0|was killed by SIG[A-Z]+); Dormouse ended it: it was stopped by ada\n$`).MatchString(got) {
		t.Errorf("the log says:\n%s", got)
	}
}

func TestLogTellsWhyNothingWasStarted(t *testing.T) {
	t.Parallel()
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Command, s.Stderr = "/no/such/program", func(string) io.WriteCloser { return kept }
	})
	r.failure(r.call("1", "pid", "0"))
	r.state(t, Exited)
	if got, closed := kept.read(); !closed || !strings.Contains(got, "/no/such/program") {
		t.Errorf("closed %v, it says:\n%s", closed, got)
	}
}

// The client of this session makes the box probe for the protocol first, so another process
// takes the place of the first one.
func TestLogTellsWhyAnotherProcessTakesAPlace(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]string{
		"exits when probed": `process \d+ exited with code \d+\n`,
		"refuses the probe": `process \d+ .*; Dormouse ended it: it refused server/discover, so another process gets initialize\n`,
		"hangs when probed": `process \d+ .*; Dormouse ended it: it did not answer server/discover in time, so another process gets initialize\n`,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			first := &page{}
			pages := []*page{first, {}}
			r := newRig(t, how, func(s *Server) {
				if how == "hangs when probed" {
					s.ProbeTime = 50 * time.Millisecond
				}
				s.Stderr = func(string) io.WriteCloser {
					next := pages[0]
					pages = pages[1:]
					return next
				}
			})
			r.hurry()
			r.result(r.ask("s", "d1", wire.MethodToolsCall, `"name":"echo",`))
			if got, _ := first.read(); !regexp.MustCompile(want + `$`).MatchString(got) {
				t.Errorf("the log says:\n%s", got)
			}
		})
	}
}
