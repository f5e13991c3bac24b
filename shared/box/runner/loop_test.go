package runner

import (
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
	code := func(c CloseCode) error { return fmt.Errorf("while receiving: %w", &ClosedError{Code: c}) }
	status := func(s int) error { return &RefusedError{Status: s} }
	for want, errs := range map[reconnection][]error{
		reconnect:       {io.EOF, errSilent, code(1000), code(CloseGoingAway), code(1006), code(3000), code(4500), code(5000), status(408), status(500)},
		reconnectLater:  {code(ClosePolicy), code(CloseTryLater), status(403), status(429), status(503)},
		reconnectSeldom: {code(CloseProtocol), code(CloseUnsupported), code(CloseNotText), code(CloseTooBig), code(CloseExtension), status(200), status(302), status(401), status(426)},
		stayAway:        {code(CloseRefused), code(4000), code(4003), code(4499)},
		fencedOff:       {code(CloseFenced)},
	} {
		for _, err := range errs {
			commontest.EqualIn(t, err.Error(), want, reconnectionOf(err))
		}
	}
}
