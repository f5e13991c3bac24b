package box

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// dialogue is a box with a process that the test plays. No program runs, so time is
// virtual.
type dialogue struct {
	*rig
	played *playedChild
	drawn  *int64 // the newest number that a request got
	open   *int64 // the number of the call that [dialogue.opened] has opened
}

// inBubble runs a test in virtual time. The process has answered initialize.
func inBubble(t *testing.T, s Server, test func(*testing.T, dialogue)) {
	t.Helper()
	inBubbleWith(t, s, `{}`, test)
}

func inBubbleWith(t *testing.T, s Server, capabilities string, test func(*testing.T, dialogue)) {
	t.Helper()
	inBubbleFrom(t, s, func(t *testing.T, d dialogue) {
		d.mu.Lock()
		_, g, _ := d.session("s", "")
		g.start(nil)
		d.mu.Unlock()
		d.greets(capabilities)
		d.drain()
		test(t, d)
	})
}

// inBubbleFrom runs a test in virtual time, with a box that has no process yet.
func inBubbleFrom(t *testing.T, s Server, test func(*testing.T, dialogue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s.Name, s.Command = "fake", "/bin/sh"
		r := &rig{recorder: newRecorder(), t: t}
		r.Box = New(s, r.recorder, nil)
		var drawn, open int64
		r.draw = func() int64 {
			drawn++
			return drawn
		}
		played := newPlayedChild()
		r.spawn = func(proc.Command, proc.Grace) (child, error) { return played, nil }
		test(t, dialogue{r, played, &drawn, &open})
		commontest.Check(t, r.Close(t.Context(), 0))
		played.Terminate()      // the box may not have started it
		time.Sleep(time.Minute) // idle goroutines of a guard end
	})
}

// playedChild is a process that a test plays: it exits when it is told to.
type playedChild struct {
	stdin, stdout     *io.PipeReader
	toStdin, toStdout *io.PipeWriter
	exited            chan struct{}
	ending            sync.Once

	mu   sync.Mutex
	read [][]byte // lines from stdin that the test has not taken yet
}

func newPlayedChild() *playedChild {
	c := &playedChild{exited: make(chan struct{})}
	c.stdin, c.toStdin = io.Pipe()
	c.stdout, c.toStdout = io.Pipe()
	go func() {
		for lines := bufio.NewReader(c.stdin); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			c.mu.Lock()
			c.read = append(c.read, bytes.TrimSuffix(line, []byte{'\n'}))
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *playedChild) PID() int                   { return 1 }
func (c *playedChild) Since() time.Time           { return time.Time{} }
func (c *playedChild) Stdin() io.Writer           { return c.toStdin }
func (c *playedChild) Stdout() io.Reader          { return c.stdout }
func (c *playedChild) Stderr() io.Reader          { return strings.NewReader("") }
func (c *playedChild) CloseStdin()                { _ = c.toStdin.Close() }
func (c *playedChild) Unread() (int, bool)        { return 0, false }
func (c *playedChild) Interrupt()                 {}
func (c *playedChild) Kill()                      { c.Terminate() }
func (c *playedChild) Release()                   {}
func (c *playedChild) Exited() <-chan struct{}    { return c.exited }
func (c *playedChild) Abandoned() <-chan struct{} { return nil }
func (c *playedChild) KernelKilled() bool         { return false }

// Reread implements child. No test freezes such a process.
func (c *playedChild) Reread() (func() ([]byte, error), error) { return nil, errors.ErrUnsupported }

func (c *playedChild) Terminate() {
	c.ending.Do(func() {
		_, _ = c.toStdin.Close(), c.toStdout.Close()
		close(c.exited)
	})
}

func (c *playedChild) Exit() (proc.Exit, bool) {
	select {
	case <-c.exited:
		return code(0), true
	default:
		return proc.Exit{}, false
	}
}

// hears has the process write a line to stdout, and waits until the box has read it.
func (d dialogue) hears(line string) {
	d.t.Helper()
	_, err := io.WriteString(d.played.toStdout, line+"\n")
	commontest.OK(d.t, err)
	synctest.Wait()
}

func (d dialogue) greets(capabilities string) {
	d.t.Helper()
	m, err := wire.Parse(d.drain()[0])
	if err != nil || m.Method != wire.MethodInitialize {
		d.t.Fatalf("%+v, %v", m, err)
	}
	d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":%s}}`, m.ID, capabilities))
}

func (d dialogue) drain() [][]byte {
	synctest.Wait()
	d.played.mu.Lock()
	defer d.played.mu.Unlock()
	lines := d.played.read
	d.played.read = nil
	return lines
}

// asks has the process ask the client something, and returns how the client sees
// it.
func (d dialogue) asks(stream string, n int) string {
	d.t.Helper()
	d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create","params":{}}`, n))
	m, err := wire.Parse(d.event(d.t, stream).Raw)
	commontest.OK(d.t, err)
	id, _ := wire.String(m.ID)
	return id
}

func (d dialogue) answers(question string) {
	d.Answer("s", question, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"result":{"action":"accept"}}`, question))
	synctest.Wait()
}

// told returns the lines that the process was sent and the test has not drained.
func (d dialogue) told() string {
	synctest.Wait()
	d.played.mu.Lock()
	defer d.played.mu.Unlock()
	return string(bytes.Join(d.played.read, []byte{'\n'}))
}

func (d dialogue) ended(stream string) bool {
	synctest.Wait()
	return !d.isOpen("s", stream)
}

// asleep reports whether the box has stopped the process because it was idle.
func (d dialogue) asleep() bool {
	synctest.Wait()
	return len(d.Processes()) == 0
}

// The time of a call stands still while its client is asked. Each question has its own time.
func TestToolDeadlineGoesOnAfterTheAnswer(t *testing.T) {
	inBubble(t, Server{ToolTimeout: 100 * time.Second, AnswerTimeout: 2*time.Hour + time.Minute}, func(t *testing.T, d dialogue) {
		call := d.call("1", "ask", "{}")
		time.Sleep(60 * time.Second)
		first := d.asks(call, 1)
		time.Sleep(time.Hour)
		second := d.asks(call, 2)
		time.Sleep(time.Hour)
		if _, idle := d.IdleSince(); idle || d.asleep() || d.ended(call) {
			t.Fatal("the call does not wait for its answers")
		}
		d.answers(first)
		time.Sleep(time.Hour)
		d.answers(second)
		time.Sleep(39 * time.Second)
		if d.ended(call) {
			t.Fatal("the time of the answers was counted")
		}
		time.Sleep(2 * time.Second)
		if f := d.failure(call); f.Phase != PhaseToolCall || f.Setting != "tool_timeout_sec" || f.Limit != 100 {
			t.Errorf("%s: %+v", f.Message, f)
		}
	})
}

func TestQuestionThatIsNeverAnsweredEndsItsCallAndNotTheProcess(t *testing.T) {
	inBubble(t, Server{AnswerTimeout: 3 * time.Hour, Idle: time.Minute}, func(t *testing.T, d dialogue) {
		call := d.call("1", "ask", "{}")
		question := d.asks(call, 1)
		time.Sleep(3*time.Hour - time.Second)
		if d.ended(call) || d.asleep() {
			t.Fatal("it ended too early")
		}
		time.Sleep(2 * time.Second)
		if f := d.fails(call, PhaseToolCall, ""); f.Code != wire.CodeInternal || f.Setting != "answer_timeout_sec" || f.Limit != 10800 {
			t.Errorf("code %d: %s: %+v", f.Code, f.Message, f)
		}
		commontest.Contains(t, "the process was told", `"method":"notifications/cancelled","params":{"requestId":2`, d.told())
		commontest.EqualIn(t, "open questions", 0, len(d.Questions()))
		before := d.told()
		d.answers(question)
		commontest.EqualIn(t, "the process was told after a late answer", before, d.told())
		time.Sleep(61 * time.Second)
		commontest.EqualIn(t, "it is asleep", true, d.asleep())
	})
}

func TestQuestionStopsTheClockOfItsOwnCallOnly(t *testing.T) {
	inBubble(t, Server{ToolTimeout: time.Minute}, func(t *testing.T, d dialogue) {
		old, young := d.call("1", "hang", "{}"), d.call("2", "ask", "{}")
		d.asks(young, 1)
		time.Sleep(2 * time.Minute)
		d.failure(old)
		commontest.EqualIn(t, "the call that asked has ended", false, d.ended(young))
	})
}

func TestQuestionOfNoCallHoldsAProcessForItsIdleTimeOnly(t *testing.T) {
	inBubble(t, Server{Idle: time.Minute}, func(t *testing.T, d dialogue) {
		d.asks("", 1)
		time.Sleep(59 * time.Second)
		commontest.EqualIn(t, "asleep too early", false, d.asleep())
		time.Sleep(2 * time.Second)
		commontest.EqualIn(t, "asleep with a question of no call", true, d.asleep())
		commontest.EqualIn(t, "open questions", 0, len(d.Questions()))
	})
}

func TestTimeOfStagingCountsForTheHandshake(t *testing.T) {
	slow, _ := with(func(context.Context, string, func(provision.Progress)) (provision.Launch, error) {
		time.Sleep(4 * time.Minute)
		return provision.Launch{Command: "/bin/sh"}, nil
	})
	s := Server{StartupTimeout: 5 * time.Minute}
	slow(&s)
	inBubbleFrom(t, s, func(t *testing.T, d dialogue) {
		call := d.call("1", "echo", "{}")
		time.Sleep(4*time.Minute + 59*time.Second)
		if d.ended(call) {
			t.Fatal("given up too early")
		}
		time.Sleep(2 * time.Second)
		if f := d.failure(call); f.Phase != PhaseMCPInit || f.Setting != "startup_timeout_sec" || f.Limit != 300 {
			t.Errorf("%+v", f)
		}
	})
}

// Output that is no answer, such as messages that were printed for people, never ends a call
// that would succeed. If the deadline ends it, the error says what the process wrote.
func TestNoiseEndsNoCallButIsInTheErrorOfItsDeadline(t *testing.T) {
	const limit = 10 * time.Second
	inBubble(t, Server{ToolTimeout: limit, ShowOutput: true}, func(t *testing.T, d dialogue) {
		call := d.call("1", "slow", "{}")
		synctest.Wait()
		for _, line := range []string{
			"50 %", `{"progress": 1,}`, `"id": 2,`, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{`, `{'jsonrpc': '2.0', 'id': 2, 'result': {}}`,
			`{"jsonrpc":"2.0","id":77,"result":{}}`, "{\n  \"id\": 2,\n  \"result\": {}\n}",
		} {
			d.hears(line)
		}
		time.Sleep(limit - time.Second)
		d.hears(`{"jsonrpc":"2.0","id":2,"result":{"ok":true}}`)
		commontest.Equal(t, `{"ok":true}`, string(d.result(call)))
		call = d.call("9", "slow", "{}")
		synctest.Wait()
		d.hears("the answer: 42")
		time.Sleep(limit)
		d.fails(call, PhaseToolCall, `did not answer tools/call within 10s (tool_timeout_sec); it was cancelled: the answer: 42 (stdout). It wrote to stdout what is no MCP message`)
	})
}

// timedOut has a call time out. It returns the ids of the two requests by which the box asks
// whether the process works.
func (d dialogue) timedOut() (ping, list string) {
	d.t.Helper()
	hung := d.call(`"hung"`, "hang", "{}")
	synctest.Wait()
	time.Sleep(d.server.ToolTimeout)
	d.final(d.t, hung)
	for _, line := range d.drain() {
		m, _ := wire.Parse(line)
		switch m.Method {
		case wire.MethodPing:
			ping = string(m.ID)
		case wire.MethodToolsList:
			list = string(m.ID)
		}
	}
	if ping == "" || list == "" {
		d.t.Fatalf("the box asks %q and %q", ping, list)
	}
	return ping, list
}

// withTools runs a test with a process that has tools. next has the processes after it.
func withTools(t *testing.T, test func(t *testing.T, d dialogue, next <-chan *playedChild)) {
	t.Helper()
	inBubbleWith(t, Server{ToolTimeout: time.Minute}, `{"tools":{}}`, func(t *testing.T, d dialogue) {
		next := make(chan *playedChild, 10)
		d.spawn = func(proc.Command, proc.Grace) (child, error) {
			c := newPlayedChild()
			next <- c
			return c, nil
		}
		test(t, d, next)
	})
}

// answersCall has the process answer the call that it has read last.
func (d dialogue) answersCall() {
	d.t.Helper()
	for _, line := range d.drain() {
		if m, err := wire.Parse(line); err == nil && m.Method == wire.MethodToolsCall {
			d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"ok":true}}`, m.ID))
			return
		}
	}
	d.t.Fatal("the process got no call")
}

// Messages that a program sends by itself show that it runs, not that it reads. A file of a
// process that hangs may be half written.
func TestProcessThatHangsIsReplacedForTheNextCall(t *testing.T) {
	withTools(t, func(t *testing.T, d dialogue, next <-chan *playedChild) {
		old := d.groups["s"].current
		d.timedOut()
		d.hears(`{"jsonrpc":"2.0","id":"k","method":"ping"}`)
		d.drain()
		begun := time.Now()
		call := d.call("2", "t", "{}")
		commontest.EqualIn(t, "the process that hangs gets the call", false, strings.Contains(d.told(), "tools/call"))
		d.replaced(next)
		d.result(call)
		commontest.EqualIn(t, "the call waited too long", false, time.Since(begun) > signTime)
		d.mu.Lock()
		defer d.mu.Unlock()
		commontest.EqualIn(t, "broken off at work", true, old.keeping.atWork)
	})
}

// replaced plays the next process, and has it answer the call that waits.
func (d *dialogue) replaced(next <-chan *playedChild) {
	d.t.Helper()
	d.played = <-next
	d.greets(`{"tools":{}}`)
	d.answersCall()
}

func TestEverySignOfLifeKeepsAProcess(t *testing.T) {
	for name, sign := range map[string]string{
		"a refusal of the ping": `{"jsonrpc":"2.0","id":PING,"error":{"code":-32601,"message":"no"}}`,
		"a list, and no pong":   `{"jsonrpc":"2.0","id":"LIST","result":{"tools":[]}}`,
		"the late answer":       `{"jsonrpc":"2.0","id":2,"result":{}}`,
	} {
		t.Run(name, func(t *testing.T) {
			withTools(t, func(t *testing.T, d dialogue, next <-chan *playedChild) {
				ping, list := d.timedOut()
				call := d.call("2", "t", "{}")
				synctest.Wait()
				time.Sleep(signTime - time.Second)
				d.hears(strings.NewReplacer("PING", ping, "LIST", list).Replace(sign))
				d.answersCall()
				d.result(call)
				time.Sleep(2 * signTime)
				commontest.EqualIn(t, "processes in its place", 0, len(next))
			})
		})
	}
}

// A process that works on another call is not replaced before that call is over. Calls
// that come meanwhile wait, because the process might never read them.
func TestProcessIsNotReplacedWhileACallIsOpen(t *testing.T) {
	withTools(t, func(t *testing.T, d dialogue, next <-chan *playedChild) {
		hung := d.call(`"hung"`, "hang", "{}")
		time.Sleep(30 * time.Second)
		open := d.call("2", "t", `{}`)
		time.Sleep(31 * time.Second)
		d.final(t, hung)
		later := d.call("3", "t", "{}")
		time.Sleep(2 * signTime)
		if len(next) > 0 || d.ended(open) {
			t.Fatal("the process was replaced at work")
		}
		time.Sleep(20 * time.Second)
		d.final(t, open)
		d.replaced(next)
		d.result(later)
	})
}
