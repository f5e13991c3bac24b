package box

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// dialogue is a box with a process that the test plays: nothing runs, so time is
// virtual.
type dialogue struct {
	*rig
	p *process
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, s Server, test func(*testing.T, dialogue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s.Name = "fake"
		r := &rig{recorder: newRecorder(), t: t}
		r.Box = New(s, r.recorder, nil)
		r.draw = counting()
		session, _ := r.session("s", "")
		p := newProcess(session.group)
		p.state, p.result = Ready, json.RawMessage(`{}`)
		session.group.current, session.group.live = p, []*process{p}
		test(t, dialogue{r, p})
		synctest.Wait()
	})
}

// hears has the process say something.
func (d dialogue) hears(line string) {
	d.p.hear([]byte(line))
	synctest.Wait()
}

// asks has the process ask the client something, and returns how the client sees
// it.
func (d dialogue) asks(stream string, n int) string {
	d.t.Helper()
	d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create","params":{}}`, n))
	m, err := wire.Parse(d.event(d.t, stream).Raw)
	if err != nil {
		d.t.Fatal(err)
	}
	id, _ := wire.String(m.ID)
	return id
}

func (d dialogue) answers(question string) {
	d.Answer("s", question, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"result":{"action":"accept"}}`, question))
	synctest.Wait()
}

// told is what the process was written.
func (d dialogue) told() string {
	d.p.queue.mu.Lock()
	defer d.p.queue.mu.Unlock()
	var out []string
	for _, l := range d.p.queue.lines {
		out = append(out, string(l))
	}
	return strings.Join(out, "\n")
}

// ended says whether a stream has its last event.
func (d dialogue) ended(stream string) bool {
	synctest.Wait()
	for _, open := range d.Open() {
		if open.ID == stream {
			return false
		}
	}
	return true
}

// asleep says whether the process was stopped for being idle.
func (d dialogue) asleep() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.p.stopping && d.p.failed == nil
}

func TestCallGoesOnWhenItsQuestionIsAnsweredHoursLater(t *testing.T) {
	inBubble(t, Server{}, func(t *testing.T, d dialogue) {
		call := d.call("1", "ask", "{}")
		time.Sleep(4 * time.Minute)
		question := d.asks(call, 1)
		time.Sleep(5 * time.Hour)
		if _, idle := d.IdleSince(); idle || d.asleep() || d.ended(call) {
			t.Fatal("the call did not wait for its answer")
		}
		d.answers(question)
		time.Sleep(59 * time.Second) // of the minute it has left
		d.hears(`{"jsonrpc":"2.0","id":2,"result":{"ok":true}}`)
		if got := d.result(call); string(got) != `{"ok":true}` {
			t.Errorf("got %s", got)
		}
	})
}

func TestToolDeadlineGoesOnAfterTheAnswer(t *testing.T) {
	inBubble(t, Server{ToolTimeout: 100 * time.Second}, func(t *testing.T, d dialogue) {
		call := d.call("1", "ask", "{}")
		time.Sleep(60 * time.Second)
		first := d.asks(call, 1)
		time.Sleep(time.Hour)
		second := d.asks(call, 2)
		time.Sleep(time.Hour)
		d.answers(first)
		time.Sleep(time.Hour)
		d.answers(second)
		time.Sleep(39 * time.Second)
		if d.ended(call) {
			t.Fatal("the time of the answers was counted")
		}
		time.Sleep(2 * time.Second)
		if _, message, _, data := d.failure(call); data.Phase != PhaseToolCall || data.Setting != "tool_timeout_sec" || data.Limit != 100 {
			t.Errorf("%s: %+v", message, data)
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
		id, message, code, data := d.failure(call)
		if id != "1" || code != int(wire.CodeInternal) || data.Phase != PhaseToolCall || data.Setting != "answer_timeout_sec" || data.Limit != 10800 {
			t.Errorf("id %s, code %d: %s: %+v", id, code, message, data)
		}
		if !strings.Contains(message, "had no answer within 3h0m0s (answer_timeout_sec)") {
			t.Error(message)
		}
		if !strings.Contains(d.told(), `"method":"notifications/cancelled","params":{"requestId":2`) {
			t.Error("the process was not told:", d.told())
		}
		if len(d.Questions()) != 0 {
			t.Error("the question is still open")
		}
		before := d.told()
		d.answers(question)
		if d.told() != before || d.Counts().Unknown != 1 {
			t.Error("a late answer reached the process")
		}

		again := d.call("2", "echo", "{}")
		d.hears(`{"jsonrpc":"2.0","id":3,"result":{}}`)
		d.result(again)
		time.Sleep(61 * time.Second)
		if !d.asleep() {
			t.Error("the process does not sleep")
		}
	})
}

func TestEachQuestionHasItsOwnTimeToBeAnswered(t *testing.T) {
	inBubble(t, Server{AnswerTimeout: time.Hour}, func(t *testing.T, d dialogue) {
		call := d.call("1", "ask", "{}")
		for n := range 5 {
			question := d.asks(call, n)
			time.Sleep(59 * time.Minute)
			d.answers(question)
		}
		d.hears(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		d.result(call)
	})
}

func TestQuestionTheServerWithdrawsNoLongerStopsTheClock(t *testing.T) {
	inBubble(t, Server{ToolTimeout: 10 * time.Second}, func(t *testing.T, d dialogue) {
		call := d.call("1", "ask", "{}")
		d.asks(call, 1)
		time.Sleep(time.Hour)
		d.hears(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q1"}}`)
		time.Sleep(11 * time.Second)
		if _, _, _, data := d.failure(call); data.Setting != "tool_timeout_sec" {
			t.Errorf("%+v", data)
		}
	})
}

func TestQuestionStopsTheClockOfItsOwnCallOnly(t *testing.T) {
	inBubble(t, Server{ToolTimeout: time.Minute}, func(t *testing.T, d dialogue) {
		old, young := d.call("1", "hang", "{}"), d.call("2", "ask", "{}")
		d.asks(young, 1)
		time.Sleep(2 * time.Minute)
		d.failure(old)
		if d.ended(young) {
			t.Error("the call that asked has ended")
		}
	})
}

func TestAnswerIsWaitedForAlsoWithoutToolDeadline(t *testing.T) {
	inBubble(t, Server{ToolTimeout: -1}, func(t *testing.T, d dialogue) {
		call := d.deliver(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{}}`)
		d.answers(d.asks(call, 1))
		time.Sleep(100 * time.Hour)
		if d.ended(call) {
			t.Fatal("a deadline was set")
		}
		d.asks(call, 2)
		time.Sleep(DefaultAnswerTimeout + time.Second)
		if _, _, _, data := d.failure(call); data.Phase != PhaseRuntime || data.Setting != "answer_timeout_sec" {
			t.Errorf("%+v", data)
		}
	})
}

func TestQuestionOfNoCallHoldsAProcessForItsIdleTimeOnly(t *testing.T) {
	inBubble(t, Server{Idle: time.Minute}, func(t *testing.T, d dialogue) {
		call := d.call("1", "echo", "{}")
		d.hears(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		d.result(call)
		d.asks("", 1)
		time.Sleep(59 * time.Second)
		if d.asleep() {
			t.Fatal("asleep too early")
		}
		time.Sleep(2 * time.Second)
		if !d.asleep() {
			t.Error("an open question that belongs to no call keeps it awake")
		}
	})
}

func TestTimeOfStagingCountsForTheHandshake(t *testing.T) {
	inBubble(t, Server{StartupTimeout: 5 * time.Minute}, func(t *testing.T, d dialogue) {
		d.p.state, d.p.begun = Started, time.Now()
		call := d.call("1", "echo", "{}")
		time.Sleep(4 * time.Minute) // an install
		d.mu.Lock()
		d.p.initialize()
		d.mu.Unlock()
		time.Sleep(59 * time.Second)
		if d.ended(call) {
			t.Fatal("given up too early")
		}
		time.Sleep(2 * time.Second)
		if _, _, _, data := d.failure(call); data.Phase != PhaseMCPInit || data.Setting != "startup_timeout_sec" || data.Limit != 300 {
			t.Errorf("%+v", data)
		}
	})
}
