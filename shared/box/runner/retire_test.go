package runner_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/runner"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
)

// onRetiring runs a test with a runner that has one call in flight and is then told to
// retire. Config.Retire ends Run's ctx, as it does in a real box.
func onRetiring(t *testing.T, test func(b *bench)) {
	t.Helper()
	var b *bench
	onAwakeBench(t, func(started *bench) {
		b = started
		b.deliver("d1")
		b.send(frametest.Frame{Type: frame.TypeDrain})
		synctest.Wait()
		hello := b.dialed()
		commontest.EqualIn(t, "a hello names the definition", "one", hello.Digest)
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: hello.Link, Retire: true})
		synctest.Wait()
		test(b)
	}, func(c *runner.Config) {
		c.Digest, c.Retire = "one", func() { b.cancel(errors.New("retired")) }
	})
}

func (b *bench) leaves() {
	b.t.Helper()
	b.box.idleFrom(time.Now())
	bye := b.soon(frame.TypeBye, time.Second)
	b.send(frametest.Frame{Type: frame.TypeByeOK, Link: bye.Link})
	b.returnedWith("")
}

func TestRetiringRunnerFinishesItsCallAndLeavesNewOnesToItsSuccessor(t *testing.T) {
	onRetiring(t, func(b *bench) {
		b.deliver("d2")
		b.send(frametest.Frame{Type: frame.TypeNudge})
		b.finishes("d1")
		b.leaves()
		equal(b.t, "executed", b.box.told(), []string{"deliver d1"})
	})
}

// A call of minutes must not keep all other clients of the server waiting.
func TestRetiringRunnerWithALongCallExecutesNewOnesAfterAWhile(t *testing.T) {
	onRetiring(t, func(b *bench) {
		b.soon(frame.TypeTaken, 2*time.Second)
		time.Sleep(5 * time.Second)
		b.emptyInbox()
		b.deliver("d2")
		b.runs()
		b.finishes("d2")
		b.runs()
		b.finishes("d1")
		b.leaves()
		equal(b.t, "executed", b.box.told(), []string{"deliver d1", "deliver d2"})
	})
}

func TestRetiringRunnerThatHasSaidByeDoesNotComeBack(t *testing.T) {
	onRetiring(t, func(b *bench) {
		b.finishes("d1")
		b.box.idleFrom(time.Now())
		bye := b.soon(frame.TypeBye, time.Second)
		b.deliver("d2")
		b.send(frametest.Frame{Type: frame.TypeNudge})
		b.nothing()
		b.send(frametest.Frame{Type: frame.TypeByeOK, Link: bye.Link})
		b.returnedWith("")
	})
}

func TestRunnerWithoutRetireGoesOn(t *testing.T) {
	onAwakeBench(t, func(b *bench) {
		b.send(frametest.Frame{Type: frame.TypeDrain})
		hello := b.dialed()
		b.send(frametest.Frame{Type: frame.TypeWelcome, Gen: benchGen, Link: hello.Link, Retire: true})
		b.deliver("d1")
		equal(b.t, "executed", b.box.told(), []string{"deliver d1"})
		b.runs()
	})
}
