package runner

import (
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
