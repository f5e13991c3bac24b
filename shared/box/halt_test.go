package box

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const stoppedByAda = `server "fake": it was stopped by ada; whether the call was executed is not known`

func TestHaltNowEndsAHangingCallAndTheNextOneWorks(t *testing.T) {
	t.Parallel()
	for name, session := range map[string]string{"of the session": "s", "of the box": ""} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "normal")
			first := r.result(r.call("1", "pid", "0"))
			hang := r.call("2", "hang", "0")
			r.Halt(storage.ID(session), "ada", 0)
			if f := r.failure(hang); f.ID != "2" || f.Message != stoppedByAda || f.Code != wire.CodeOutcomeUnknown || f.Phase != PhaseBoxUnavailable {
				t.Errorf("the call %s ended with %q, code %d, %+v", f.ID, f.Message, f.Code, f)
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
			r := newRig(t, "normal")
			hang := r.call("1", "hang", "0")
			r.state(t, Ready)
			r.Halt("s", "ada", times[0])
			r.Halt("", "bob", times[1])
			r.fails(hang, "", "stopped by "+by)
		})
	}
}

// A process that is drained before the box knows its protocol may be asked in the wrong one.
// The next process executes its calls, unless the box is shut down.
func TestHaltOfAProcessThatRefusesItsProtocolLosesNoCall(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]bool{"it is drained": false, "the box is shut down": true} {
		t.Run(name, func(t *testing.T) {
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
			commontest.EqualIn(t, "code", wire.CodeInternal, r.fails(d, "", want).Code)
		})
	}
}

func TestHaltOfASessionThatSharesItsProcessEndsItsCallsOnly(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	before := c.result(c.callAs("ann/1", "1", "pid", "0"))
	hang := c.callAs("ann/1", "2", "hang", "0")
	others := c.callAs("bob/1", "1", "answer at eof", "0")
	c.Halt("ann/1", "ada", 0)
	commontest.EqualIn(t, "message", stoppedByAda, c.failure(hang).Message)
	c.none(t, others)
	commontest.EqualIn(t, "the shared process was stopped", string(before), string(c.result(c.callAs("ann/1", "3", "pid", "0"))))
}
