package runner

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// An alarm may ring while the loop does something else. If the loop then sets it again, the loop
// must not hear what it was set to before.
func TestAnAlarmThatWasSetAgainForgetsWhatItWasSetTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		posted := make(chan func(), 2)
		lo := &loop{post: func(do func()) bool { posted <- do; return true }}
		var a alarm
		var rang []string
		for _, name := range []string{"first", "second"} {
			lo.set(&a, time.Second, func() { rang = append(rang, name) })
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for len(posted) > 0 {
			(<-posted)()
		}
		commontest.SameIn(t, "rang", []string{"second"}, rang)
	})
}

func TestHowAConnectionEndedSaysWhetherToComeBack(t *testing.T) {
	codes := func(want reconnection, codes ...CloseCode) map[error]reconnection {
		m := map[error]reconnection{}
		for _, c := range codes {
			m[&ClosedError{Code: c}] = want
			m[fmt.Errorf("while receiving: %w", &ClosedError{Code: c})] = want
		}
		return m
	}
	statuses := func(want reconnection, statuses ...int) map[error]reconnection {
		m := map[error]reconnection{}
		for _, s := range statuses {
			m[&RefusedError{Status: s}] = want
		}
		return m
	}
	for _, cases := range []map[error]reconnection{
		{io.EOF: reconnect, errors.New("connection reset by peer"): reconnect, errSilent: reconnect},
		codes(reconnect, 1000, CloseGoingAway, 1005, 1006, 1011, 1012, 1014, 1015, 3000, 4500, 4999, 5000),
		codes(reconnectLater, ClosePolicy, CloseTryLater),
		codes(reconnectSeldom, CloseProtocol, CloseUnsupported, CloseNotText, CloseTooBig, CloseExtension),
		codes(stayAway, CloseRefused, 4000, 4003, 4499),
		codes(fencedOff, CloseFenced),
		statuses(reconnect, 408, 500, 502, 504),
		statuses(reconnectLater, 403, 429, 503),
		statuses(reconnectSeldom, 200, 302, 400, 401, 404, 410, 426),
	} {
		for err, want := range cases {
			commontest.EqualIn(t, "after", want, reconnectionOf(err))
		}
	}
}
