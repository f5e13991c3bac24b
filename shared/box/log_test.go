package box

import (
	"cmp"
	"io"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
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

// A server may exit with code 0 when its stdin is closed, so the code alone does not say
// whether the server ended by itself.
func TestLogTellsTheLifeOfAProcess(t *testing.T) {
	t.Parallel()
	const began = `^--- \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z process \d+ of session s started\n`
	for name, c := range map[string]struct {
		command string
		end     func(r *rig)
		want    string
	}{
		"it dies":                  {end: func(r *rig) { r.failure(r.call("2", "die", "0")) }, want: began + `out of cheese\n--- .* process \d+ exited with code 3\n$`},
		"Dormouse ends it":         {end: func(r *rig) { r.Halt("", "ada", 0) }, want: began + `--- .* process \d+ (exited with code 0|was killed by SIG[A-Z]+); Dormouse ended it: .*ada\n$`},
		"nothing could be started": {command: "/no/such/program", end: func(*rig) {}, want: "/no/such/program"},
	} {
		t.Run(name, func(t *testing.T) {
			kept := &page{}
			r := newRig(t, "normal", func(s *Server) {
				s.Command = cmp.Or(c.command, s.Command)
				s.Stderr = func(string) io.WriteCloser { return kept }
			})
			r.final(t, r.call("1", "pid", "0"))
			c.end(r)
			find(t, r.recorder, "the end", func(s ProcessStatus) bool { return s.State == Stopped || s.State == Exited })
			if got, closed := kept.read(); !closed || !regexp.MustCompile(c.want).MatchString(got) {
				t.Errorf("closed %v, it says:\n%s", closed, got)
			}
		})
	}
}

func TestPasswordOfTheMachinesProxyIsHidden(t *testing.T) {
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Base = map[string]string{"https_proxy": "http://ada:hunter%2022@proxy.example:3128", "HTTP_PROXY": "bob:swordfish@proxy.example"}
		s.Stderr = func(string) io.WriteCloser { return kept }
	})
	r.call("1", "say", `"proxy.example refuses hunter 22, hunter%2022, swordfish and http://ada:hunter%2022@proxy.example:3128\n"`)
	r.failure(r.call("2", "die", "0"))
	r.state(t, Exited)
	commontest.Contains(t, "", "stdout: proxy.example refuses ***, ***, *** and http://***@proxy.example:3128\n", kept.String())
}
