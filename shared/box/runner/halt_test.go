package runner_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
)

func TestHaltOfASessionReachesTheBoxWhichGoesOn(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		since := time.Now()
		b.box.idleFrom(since)
		b.send(frametest.Frame{Type: frame.TypeHalt, Session: "s1", By: "ada", In: 30_000})
		commontest.SameIn(t, "the box was told", []string{"halt s1 ada 30s"}, b.box.told())
		b.soon(frame.TypeBye, 3*time.Minute)
		if idle := time.Since(since); idle < 2*time.Minute {
			t.Errorf("said bye after %s", idle)
		}
	})
}

func TestBoxSleepsSoonAfterAllItsProcessesWereStopped(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.pass(20 * time.Second) // the runner knows that the box is busy
		b.send(frametest.Frame{Type: frame.TypeHalt, By: "ada"})
		commontest.SameIn(t, "the box was told", []string{"halt  ada 0s"}, b.box.told())
		b.box.idleFrom(time.Now())
		b.soon(frame.TypeBye, 2*time.Second)
	})
}
