package runner_test

import (
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// sentAgo sets the time at which the host posted a deliver: this long ago, by the host's
// clock.
func sentAgo(d time.Duration) func(*frametest.Frame) {
	return func(f *frametest.Frame) { f.Sent = time.Now().Add(-d).UnixMilli() }
}

func TestALateDeliverIsExecutedOnlyIfTheHostAllowsIt(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("now", sentAgo(900*time.Millisecond))
		b.deliver("notification", sentAgo(time.Minute), func(f *frametest.Frame) { f.AckWithin = 0 })
		equal(t, "executed", b.box.told(), []string{"deliver now", "deliver notification"})
		b.deliver("late", sentAgo(26*time.Second))
		b.deliver("late", sentAgo(20*time.Second))
		b.deliver("ended", sentAgo(-26*time.Second)) // the clocks differ, so its age is unknown
		if first, second := b.expect(frame.TypeAsk), b.expect(frame.TypeAsk); first.ID != "late" || second.ID != "ended" || first.Ticket == "" {
			t.Errorf("asked for %+v and %+v", first, second)
		}
		equal(t, "executed before the answer", b.box.told(), nil)
		b.send(frametest.Frame{Type: frame.TypeMay, ID: "ended", Refused: storage.Closed})
		b.send(frametest.Frame{Type: frame.TypeMay, ID: "late"})
		b.send(frametest.Frame{Type: frame.TypeMay, ID: "late"})
		equal(t, "executed after", b.box.told(), []string{"deliver late"})
	})
}

func TestAnAskThatIsLostIsSentAgain(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.deliver("late", sentAgo(time.Minute))
		b.expect(frame.TypeAsk)
		b.soon(frame.TypeAsk, 5*time.Second)
		b.deliver("late", sentAgo(0)) // its sender lives
		equal(t, "executed", b.box.told(), []string{"deliver late"})
		b.send(frametest.Frame{Type: frame.TypeMay, ID: "late"})
		equal(t, "executed again", b.box.told(), nil)
	})
}
