package box

import (
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const stoppedByAda = `server "fake": it was stopped by ada; whether the call was executed is not known`

func TestHaltNowEndsAHangingCallAndTheNextOneWorks(t *testing.T) {
	t.Parallel()
	for name, session := range map[string]string{"of the session": "s", "of the box": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "normal")
			first := r.result(r.call("1", "pid", "0"))
			hang := r.call("2", "hang", "0")
			r.Halt(storage.ID(session), "ada", 0)
			if id, message, code, data := r.failure(hang); id != "2" || message != stoppedByAda || code != int(wire.CodeOutcomeUnknown) || data.Phase != PhaseBoxUnavailable {
				t.Errorf("the call %s ended with %q, code %d, %+v", id, message, code, data)
			}
			if second := r.result(r.call("3", "pid", "0")); string(second) == string(first) {
				t.Error("the process that was stopped answers")
			}
			r.state(t, Stopped)
		})
	}
}

// A call that asks its client something is in flight until the test lets it end.
func TestHaltLetsCallsInFlightEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, "normal")
	first := r.result(r.call("1", "pid", "0"))
	d := r.call("2", "ask", `"e"`)
	q, _ := wire.String(wire.Lookup(r.event(t, d).Raw, "id"))
	r.Halt("nobody", "ada", 0) // is not here
	r.Halt("s", "ada", patience)
	next := r.call("3", "pid", "0")
	r.Answer("s", q, []byte(`{"jsonrpc":"2.0","id":"`+q+`","result":{}}`))
	r.result(d)
	r.state(t, Stopped)
	if second := r.result(next); string(second) == string(first) {
		t.Error("the process that was stopped answers")
	}
}

// Calls end when their time is over. An order that comes late, as that of a machine that drains
// after it was told to end at once, gives no more time.
func TestTheHaltThatGivesLessTimeCounts(t *testing.T) {
	t.Parallel()
	for by, times := range map[string][2]time.Duration{"ada": {50 * time.Millisecond, time.Hour}, "bob": {time.Hour, 0}} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "normal")
			hang := r.call("1", "hang", "0")
			r.state(t, Ready)
			r.Halt("s", "ada", times[0])
			r.Halt("", "bob", times[1])
			if _, message, _, _ := r.failure(hang); !strings.Contains(message, "stopped by "+by) {
				t.Errorf("got %q", message)
			}
		})
	}
}

// A process that is drained before the box knows its protocol may be asked in the wrong one.
// The next process executes its calls, unless the box is shut down.
func TestHaltOfAProcessThatRefusesItsProtocolLosesNoCall(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"it is drained": false, "the box is shut down": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "hangs when probed", func(s *Server) { s.ProbeTime = time.Second })
			r.hurry()
			d := r.ask("s", "d1", wire.MethodToolsCall, `"name":"echo",`)
			r.state(t, Started)
			if r.Halt("s", "ada", patience); !ends {
				r.result(d)
				return
			}
			r.shut(patience)
			want := `server "fake": it was stopped by ada; the call was not executed, send it again`
			if _, message, code, _ := r.failure(d); message != want || code != int(wire.CodeInternal) {
				t.Errorf("got %q, code %d", message, code)
			}
		})
	}
}

func TestHaltOfASessionThatSharesItsProcessEndsItsCallsOnly(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, ScopeShared)
	before := c.result(c.callAs("ann/1", "1", "pid", "0"))
	hang := c.callAs("ann/1", "2", "hang", "0")
	others := c.callAs("bob/1", "1", "answer at eof", "0")
	c.Halt("ann/1", "ada", 0)
	if _, message, _, _ := c.failure(hang); message != stoppedByAda {
		t.Errorf("got %q", message)
	}
	c.none(t, others)
	if after := c.result(c.callAs("ann/1", "3", "pid", "0")); string(after) != string(before) {
		t.Error("the shared process was stopped")
	}
}
