package runner

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
)

// onLoop runs a test that plays the goroutine of Run: settle calls what was posted.
func onLoop(t *testing.T, test func(lo *loop, settle func())) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		posted := make(chan func(), 100)
		lo := &loop{post: func(do func()) bool { posted <- do; return true }}
		defer lo.wg.Wait()
		test(lo, func() {
			for synctest.Wait(); len(posted) > 0; synctest.Wait() {
				(<-posted)()
			}
		})
	})
}

func TestAnAlarmThatWasSetAgainForgetsWhatItWasSetTo(t *testing.T) {
	onLoop(t, func(lo *loop, settle func()) {
		var a alarm
		var rang []string
		lo.set(&a, time.Second, func() { rang = append(rang, "first") })
		time.Sleep(time.Second) // the first has rung, and the loop does not know yet
		synctest.Wait()
		lo.set(&a, time.Second, func() { rang = append(rang, "second") })
		time.Sleep(time.Second)
		settle()
		if !slices.Equal(rang, []string{"second"}) {
			t.Errorf("rang %v", rang)
		}
	})
}

func TestAnExecutorThatBlocksIsCalledInOrderAndNotByTheLoop(t *testing.T) {
	onLoop(t, func(lo *loop, settle func()) {
		x := &executing{loop: lo, calls: make(chan func(Executor), 1)}
		lo.spawn(x.execute)
		defer close(x.calls)
		release := make(chan struct{})
		var called []int
		for n := range 3 {
			x.call(func(Executor) { <-release; called = append(called, n) })
		}
		settle()
		if len(x.waiting) != 2 {
			t.Errorf("%d calls wait, want 2", len(x.waiting))
		}
		close(release)
		settle()
		if !slices.Equal(called, []int{0, 1, 2}) || x.calling {
			t.Errorf("called %v, calling %t", called, x.calling)
		}
	})
}

func TestAByeIsRepeatedTakenAndTakenBack(t *testing.T) {
	for name, row := range map[string]struct {
		then  func(fw *farewell)
		stage phase
		says  string // what goes to the host after the bye
	}{
		"repeated":                {func(*farewell) { time.Sleep(byeAgain) }, parting, "frame.Bye"},
		"taken":                   {func(fw *farewell) { fw.byeTaken(frame.ByeOK{Link: 1}) }, lingering, ""},
		"an older one taken":      {func(fw *farewell) { fw.byeTaken(frame.ByeOK{}) }, parting, ""},
		"taken back":              {func(fw *farewell) { fw.takeBack() }, rejoining, "frame.Hello"},
		"taken back in the end":   {func(fw *farewell) { fw.byeTaken(frame.ByeOK{Link: 1}); fw.takeBack() }, rejoining, "frame.Hello"},
		"taken back when awake":   {func(fw *farewell) { fw.links.stage = up; fw.takeBack() }, up, ""},
		"taken back without host": {func(fw *farewell) { fw.links.live = nil; fw.takeBack() }, rejoining, ""},
	} {
		t.Run(name, func(t *testing.T) {
			onLoop(t, func(lo *loop, settle func()) {
				cfg := &Config{Log: slog.New(slog.DiscardHandler), Linger: time.Hour}
				lk := &link{no: 1, out: make(chan []byte, 1)}
				ls := &links{cfg: cfg, loop: lo, no: 1, stage: up, live: lk}
				said := func() string {
					if len(lk.out) == 0 {
						return ""
					}
					f, err := frame.Decode(<-lk.out)
					if err != nil {
						t.Fatal(err)
					}
					lk.writing = false
					return fmt.Sprintf("%T", f)
				}
				fw := &farewell{cfg: cfg, loop: lo, links: ls}
				fw.bye(time.Minute)
				if got := said(); got != "frame.Bye" || ls.stage != parting {
					t.Fatalf("said %q in stage %d", got, ls.stage)
				}
				row.then(fw)
				settle()
				if got := said(); got != row.says || ls.stage != row.stage {
					t.Errorf("said %q in stage %d, want %q in %d", got, ls.stage, row.says, row.stage)
				}
			})
		})
	}
}
