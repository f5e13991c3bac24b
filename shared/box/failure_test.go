package box

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestServerThatExitsAtOnceSaysWhy(t *testing.T) {
	r := newRig(t, "exits", func(s *Server) { s.Env["API_KEY"] = "sk-123456789" })
	for _, d := range []string{r.call(`"a"`, "echo", "1"), r.call(`"b"`, "echo", "1")} {
		f := r.fails(d, PhaseProcessStart, `server "fake": exited with code 127 before it answered initialize: no module named mcp, key ***`)
		if f.Code != wire.CodeInternal || *f.ExitCode != 127 || f.Stderr != "first line\nno module named mcp, key ***" || !f.NotExecuted || f.Since.IsZero() {
			t.Errorf("code %d, data %+v", f.Code, f)
		}
	}
	s := r.state(t, Exited)
	if s.Phase != PhaseProcessStart || s.ExitCode == nil || *s.ExitCode != 127 || s.PID == 0 || !strings.HasSuffix(s.Stderr, "key ***") {
		t.Errorf("the end is told as %+v", s)
	}
}

// An earlier round of the call was executed, although this process never got the call.
func TestLaterRoundWithoutAProcessHasAnUnknownOutcome(t *testing.T) {
	r := newRig(t, "exits")
	for round, want := range []wire.Code{wire.CodeInternal, wire.CodeOutcomeUnknown} {
		stream := string(rune('a' + round))
		r.deliverAs(stream, round, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`)
		if f := r.failure(stream); f.Code != want || f.NotExecuted != (round == 0) {
			t.Errorf("round %d: %d %s, %+v", round, f.Code, f.Message, f)
		}
	}
}

// The operator gets the output of a server. Clients get it only if the configuration says
// so.
func TestClientsGetNothingThatAServerPrints(t *testing.T) {
	for _, how := range []string{"exits", "says why on stdout"} {
		r := newRig(t, how, func(s *Server) { s.ShowOutput, s.Env["API_KEY"] = false, "sk-123456789" })
		f := r.fails(r.call("1", "echo", "1"), PhaseProcessStart, "before it answered initialize")
		commontest.Contains(t, how, "dormouse logs fake", f.Message)
		for _, part := range []string{"module", "settings", "key", redact.Hidden} {
			if all := fmt.Sprintf("%s %+v", f.Message, f); strings.Contains(all, part) {
				t.Errorf("%s: the client gets %q: %s", how, part, all)
			}
		}
		if s := r.state(t, Exited); !strings.Contains(s.Detail, "key ***") || s.Stderr+s.Stdout == "" {
			t.Errorf("%s: the operator gets %+v", how, s)
		}
	}
}

func TestServerThatSpokeBeforeItExitedFailedInTheHandshake(t *testing.T) {
	r := newRig(t, "speaks then exits")
	r.fails(r.call("1", "echo", "1"), PhaseMCPInit, "")
	commontest.EqualIn(t, "what it said", `"hello"`, string(wire.Lookup(r.event(t, "").Raw, "params", "data")))
}

func TestCommandThatCannotRunFailsAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	commontest.OK(t, os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600))
	for _, c := range []struct{ command, cwd, path, want string }{
		{"uv", "", "/nowhere", "it needs uv, which is not installed: install uv"},
		{"no-such-program", "", "/bin", "no-such-program is not on the PATH"},
		{"npx", "", dir, "it needs npx, which is not installed: Node.js"},
		{"plain", "", dir, "command " + plain + ": permission denied: it is not executable"},
		{dir, "", "/bin", "command " + dir + ": it is a directory"},
		{"npx -y server", "", "/bin", "put arguments into args"},
		{"/bin/sh", "/no/such/dir", "/bin", "cwd of the server"},
	} {
		t.Run(c.want, func(t *testing.T) {
			r := newRig(t, "", func(s *Server) { s.Command, s.Cwd, s.Base = c.command, c.cwd, map[string]string{"PATH": c.path} })
			f := r.fails(r.call("1", "echo", "1"), PhaseProcessStart, c.want)
			if s := r.state(t, Exited); s.PID != 0 || s.Phase != PhaseProcessStart || s.Detail != f.Message {
				t.Errorf("the end is told as %+v", s)
			}
		})
	}
}

func TestProcessThatDiesEndsWhatIsOpenAndTheNextMessageStartsAnother(t *testing.T) {
	r := newRig(t, "normal")
	first := r.result(r.call("1", "pid", "0"))
	hang := r.call("2", "hang", "0")
	batch := r.deliver(`[{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"hang"}},{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"die"}}]`)
	for _, d := range []string{hang, batch} {
		commontest.Equal(t, 3, *r.fails(d, PhaseRuntime, `server "fake": exited with code 3: out of cheese`).ExitCode)
	}
	if e := r.event(t, batch); e.Final || string(wire.Lookup(e.Raw, "id")) != "3" {
		t.Errorf("the first of the batch ends with final=%v %s", e.Final, e.Raw)
	}
	r.another(first, r.result(r.call("5", "pid", "0")))
}

func TestProcessKilledBySignalNamesIt(t *testing.T) {
	r := newRig(t, "normal")
	f := r.failure(r.call("1", "die by signal", "0"))
	if f.Message != `server "fake": was killed by SIGKILL` || f.Signal != "SIGKILL" || f.ExitCode != nil || f.Phase != PhaseRuntime {
		t.Errorf("got %q %+v", f.Message, f)
	}
}

func TestAnswersInFlightAreDrainedAtEOF(t *testing.T) {
	r := newRig(t, "answers at eof")
	d := r.call("1", "answer at eof", "0")
	r.result(r.call("2", "echo", "0"))
	r.StopSession("s") // its stdin ends
	commontest.Equal(t, `"eof"`, string(wire.Lookup(r.result(d), "at")))
	// The box reports the answer before it reports the end of the process.
	for _, v := range r.past {
		if s, ok := v.(ProcessStatus); ok && s.State == Stopped {
			t.Error("the end of the process was told first")
		}
	}
	r.state(t, Stopped)
}

func TestLargeOutputBeforeTheExitIsNotLost(t *testing.T) {
	r := newRig(t, "", func(s *Server) {
		s.Command = "/bin/sh"
		// The server answers initialize (1), then the first call (2) with much more than a
		// pipe holds, and exits at once.
		s.Args = []string{"-c", `read a; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'; read b; read c
			printf '{"jsonrpc":"2.0","id":2,"result":"'; head -c 3000000 /dev/zero | tr '\0' x; printf '"}'; exit 5`}
	})
	commontest.Equal(t, 3000002, len(r.result(r.call("1", "echo", "1"))))
	commontest.EqualIn(t, "the end is told as", 5, *r.state(t, Exited).ExitCode)
}

func TestServerThatClosesItsStdoutAndStaysIsEnded(t *testing.T) {
	r := newRig(t, "normal")
	r.grace.Stdin = 100 * time.Millisecond
	hang := r.call("1", "hang", "0")
	r.call("2", "close stdout", "0")
	pid := r.state(t, Ready).PID
	r.fails(hang, PhaseRuntime, `server "fake": closed its stdin or stdout and did not exit`)
	if s := r.state(t, Exited); s.PID != pid || s.Signal != "SIGTERM" {
		t.Errorf("the end is told as %+v", s)
	}
}

func TestServerThatDoesNotReadGetsABoundedQueue(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) { s.ToolTimeout = -1 })
	r.result(r.call("1", "stop reading", "0"))
	for i := range 9 {
		r.call(strconv.Itoa(10+i), "echo", `"`+strings.Repeat("x", 4<<20)+`"`)
	}
	// The ninth is refused: the first is being written, and its bytes count too.
	r.fails("d10", PhaseRuntime, "does not read its input")
	r.result(r.deliverIn("other", "pid")) // the other sessions of the box still get answers
}

func TestMessagesForAProcessThatStartsAreBoundedToo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ bytes, fit int }{"by their bytes": {4 << 20, 7}, "by their number": {1, maxRequests}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "silent")
			text := `"` + strings.Repeat("x", c.bytes) + `"`
			for i := range c.fit {
				r.call(strconv.Itoa(i), "echo", text)
			}
			r.fails(r.call(`"over"`, "echo", text), PhaseRuntime, "")
			commontest.Equal(t, c.fit, len(r.Open()))
		})
	}
}

func TestLineOverTheLimitEndsTheRequestItAnswers(t *testing.T) {
	r := newRig(t, "normal")
	pid := r.result(r.call("1", "pid", "0"))
	hang := r.call("2", "hang", "0")
	f := r.failure(r.call("3", "big", strconv.Itoa(maxLine)))
	if f.Phase != PhaseToolCall || f.Limit != maxLine || !strings.Contains(f.Message, "over the limit of 16777216") {
		t.Errorf("got %q %+v", f.Message, f)
	}
	commontest.EqualIn(t, "the process was started anew", string(pid), string(r.result(r.call("4", "pid", "0"))))
	r.none(t, hang)
}

func TestSlowSinkHoldsUpItsOwnSessionOnly(t *testing.T) {
	k := &slowSink{recorder: newRecorder(), slow: "slow", gate: make(chan struct{})}
	r := newRig(t, "normal")
	r.recorder, r.sink = k.recorder, k
	calls := func(session string) (streams []string) {
		for i := range 20 {
			streams = append(streams, r.callAs(session, strconv.Itoa(i), "big", "500000"))
		}
		return streams
	}
	waiting := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.sessions["slow"].bytes
	}
	slow := calls("slow")
	commontest.Eventually(t, "the process is not read any more", func() bool { return waiting() > maxUntold })
	// The other session gets as much output again. If the box still read the slow
	// session's process, the bytes that wait would grow in this time.
	for _, stream := range calls("fast") {
		r.final(t, stream)
	}
	commontest.EqualIn(t, "bytes that wait are few", true, waiting() <= maxUntold+1<<20)
	close(k.gate)
	for _, stream := range slow {
		r.final(t, stream)
	}
}

// slowSink holds up the events of one session until the gate opens.
type slowSink struct {
	*recorder
	slow string
	gate chan struct{}
}

func (k *slowSink) Event(e frame.Event) {
	if string(e.Session) == k.slow {
		<-k.gate
	}
	k.recorder.Event(e)
}

// It has four variables of the runner, those of its network, and what its image sets. What is
// configured takes precedence.
func TestProcessHasACleanEnvironment(t *testing.T) {
	r := newRig(t, "normal", func(s *Server) {
		s.Base = map[string]string{
			"PATH": "/bin", "HOME": "/h", "LANG": "de", "TERM": "xterm", "DORMOUSE_TOKEN": "t", "AWS_SECRET": "s",
			"HTTP_PROXY": "http://p", "https_proxy": "http://p", "SSL_CERT_FILE": "/ca", "NODE_EXTRA_CA_CERTS": "/ca",
		}
		s.Given = map[string]string{"MODE": "production"}
		s.Unset = []string{"HTTP_PROXY", "LANG", "NODE_EXTRA_CA_CERTS"}
		maps.Copy(s.Env, map[string]string{"PATH": "/opt", "HTTPS_PROXY": "http://own", "X": "a=b\nc"})
	})
	var got []string
	commontest.OK(t, json.Unmarshal(r.result(r.call("1", "env", "0")), &got))
	got = slices.DeleteFunc(got, func(v string) bool { return strings.HasPrefix(v, coverage+"=") })
	slices.Sort(got)
	want := []string{
		behaviour + "=normal", exitAtOnce + "=atexit_sleep_ms=0", "HOME=/h", "HTTPS_PROXY=http://own", "MODE=production", "PATH=/opt",
		"SSL_CERT_FILE=/ca", "TMPDIR=/tmp", "X=a=b\nc",
	}
	commontest.SameIn(t, "environment", want, got)
}

func TestProcessRunsInItsDirectoryWithoutAShell(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	commontest.OK(t, err)
	commontest.OK(t, os.Symlink(self(t), filepath.Join(dir, "my server")))
	r := newRig(t, "normal", func(s *Server) { s.Cwd, s.Command, s.Args = dir, "./my server", []string{"$HOME", "; exit 1"} })
	commontest.EqualIn(t, "the process runs in", strconv.Quote(dir), string(r.result(r.call("1", "cwd", "0"))))
}

func TestProgramIsNotLookedForInTheCurrentDirectory(t *testing.T) {
	dir := t.TempDir()
	commontest.OK(t, os.Mkdir(filepath.Join(dir, "bin"), 0o700))
	for _, name := range []string{"program", "bin/program"} {
		commontest.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o700))
	}
	t.Chdir(dir)
	if file, err := LookPath("program", "bin:.::"+filepath.Join(dir, "none"), ""); err == nil {
		t.Errorf("found %s", file)
	}
}

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
	for want, end := range map[string]func(r *rig){
		`out of cheese\n--- .* process \d+ exited with code 3\n$`:                                      func(r *rig) { r.call("2", "die", "0") },
		`--- .* process \d+ (exited with code 0|was killed by SIG[A-Z]+); Dormouse ended it: .*ada\n$`: func(r *rig) { r.Halt(frame.Halt{By: "ada"}) },
		`--- .*; Dormouse ended it: .*memory\n$`: func(r *rig) {
			_, stop, _ := r.Idlest()
			stop()
		},
	} {
		t.Run(want, func(t *testing.T) {
			kept := &page{}
			r := newRig(t, "normal", func(s *Server) { s.Stderr = func(string) io.WriteCloser { return kept } })
			r.result(r.call("1", "pid", "0"))
			end(r)
			find(t, r.recorder, "the end", func(s ProcessStatus) bool { return s.State == Stopped || s.State == Exited })
			if got, closed := kept.read(); !closed || !regexp.MustCompile(began+want).MatchString(got) {
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

func TestARefusalIsInTheErrorOfTheCallThatMetIt(t *testing.T) {
	kept := &page{}
	r := newRig(t, "normal", func(s *Server) {
		s.Refusals, s.Env["API_KEY"] = true, "s3cret-name"
		s.Stderr = func(string) io.WriteCloser { return kept }
	})
	refused := func(hosts, answer string) string {
		return r.call("1", "refused", `{"hosts":[`+hosts+`],"answer":{`+answer+`}}`)
	}
	hosts := ""
	for _, same := range []string{`"error":{"code":-1,"message":"no"}`, `"result":{"content":[{"type":"text","text":"fine"}]}`} {
		commontest.EqualIn(t, "the client", `{"jsonrpc":"2.0","id":1,`+same+`}`, string(r.final(t, refused(hosts, same)).Raw))
		hosts = `"a.test"` // for the second, which succeeds
	}
	r.fails(refused(`"b.test","s3cret-name.test"`, `"error":{"code":-1,"message":"no"}`), "", "network: b.test was refused; network: ***.test was refused")
	for host, old := range map[string]string{"c.test": `[]`, "d.test": `[{"type":"text","text":"no"}]`} {
		got := string(r.final(t, refused(`"`+host+`"`, `"result":{"content":`+old+`,"isError":true}`)).Raw)
		commontest.Contains(t, host, `"content":`+strings.TrimSuffix(old, "]"), got)
		commontest.Contains(t, host, `network: `+host+` was refused"}],"isError":true}`, got)
	}
	for _, text := range []string{"network: a.test was refused", "network: ***.test was refused"} {
		find(t, r.recorder, text, func(s ProcessStatus) bool { return s.Detail == text && s.State == Ready })
	}
	time.Sleep(saidAgain + 50*time.Millisecond)
	other := `"error":{"code":-1,"message":"another reason"}`
	commontest.EqualIn(t, "the client of a later call", `{"jsonrpc":"2.0","id":1,`+other+`}`, string(r.final(t, refused("", other)).Raw))
	r.fails(r.call("1", "refused", `{"hosts":["e.test"],"exit":true}`), "", "; network: e.test was refused")
	commontest.Eventually(t, "the log is closed", func() bool { _, closed := kept.read(); return closed })
	commontest.EqualIn(t, "refusals in the log", 1, strings.Count(kept.String(), " network: b.test was refused\n"))
}

func TestContainerThatReadsNothingIsTold(t *testing.T) {
	for line, want := range map[string]string{
		"docker run --rm img -t x": "needs -i", "docker run -it --rm img": "without -t", "docker run -i --rm img -t x": "", "docker ps": "", "node run": "",
	} {
		words := strings.Fields(line)
		if got := ofDockerRun(words[0], words[1:]); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}
