package relay_test

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// conversation returns the calls of three clients at once: quick calls and slow ones, with
// progress, with a question or with long messages both ways, several of a session in flight.
func conversation() [][][]does {
	return [][][]does{
		{ // a session: its calls run one after the other; sessions run side by side
			{{Label: "a1"}, {Label: "a2", Sleep: 400, Progress: 1}},
			{{Label: "a4", Sleep: 1500}, {Label: "a5", Sleep: 10, Ask: true}},
		},
		{
			{{Label: "b1", Argument: 125_000, Sleep: 20}, {Label: "b2"}, {Label: "b3", Sleep: 2500}},
			{{Label: "b4", Sleep: 300, Ask: true}},
		},
		{
			{{Label: "c1", Bytes: 125_000}, {Label: "c2", Sleep: 5, Progress: 2}},
		},
	}
}

// steady returns a world in which each message takes some time, and the same each time.
func steady(t *testing.T) *counted {
	c := countedOn(t, storagetest.NewMemory())
	c.takes = 15 * time.Millisecond
	onRecord(t, c.store, "t", handshake)
	return c
}

// hold makes the clients do all their calls, and waits until the box sleeps. It checks the
// promises that hold wherever the connection is cut.
func (c *counted) hold(t *testing.T) {
	var all sync.WaitGroup
	labels := map[storage.ID][]string{}
	for _, lanes := range conversation() {
		id := c.open(t)
		for _, lane := range lanes {
			for _, do := range lane {
				labels[id] = append(labels[id], do.Label)
			}
			all.Go(func() {
				for _, do := range lane {
					c.call(t, id, do)
				}
			})
		}
	}
	all.Wait()
	c.quiet()
	if c.starts != 1 || c.ended != nil {
		t.Errorf("%d runners were started, the last ended with %v", c.starts, c.ended)
	}
	for id, labels := range labels {
		c.noted(t, id, labels)
	}
	b, err := c.store.Box(t.Context(), "t/s")
	if err != nil || b.State != storage.Asleep || b.Lost != 0 {
		t.Errorf("the box is %q, lost %d: %v", b.State, b.Lost, err)
	}
	if items, err := c.store.Items(t.Context(), "t/s"); err != nil || len(items) > 0 {
		t.Errorf("%d items are left: %v", len(items), err)
	}
}

// noted checks that each call of a session was executed once, and that the standalone stream
// has the notification of each once, at the next index.
func (c *counted) noted(t *testing.T, id storage.ID, labels []string) {
	t.Helper()
	page, err := c.store.Read(t.Context(), id, storage.Standalone, 0, 1000)
	commontest.OK(t, err)
	var all strings.Builder
	for i, e := range page.Events {
		commontest.EqualIn(t, "index of a standalone event", storage.Index(i+1), e.Index)
		all.Write(e.Raw)
	}
	for _, label := range labels {
		if n := strings.Count(all.String(), fmt.Sprintf("%q", label)); n != 1 || c.executed[label] != 1 {
			t.Errorf("call %s was executed %d times, and is noted %d times", label, c.executed[label], n)
		}
	}
	commontest.EqualIn(t, "standalone events", len(labels), len(page.Events))
}

var cutAll = flag.Bool("cut.all", false, "cut at each frame, with -short and with the race detector too")

// TestCutAtEveryFrame cuts the runner's connection once, at each frame of the conversation, in
// both directions: before it, so that it is lost, and behind it. With the race detector or
// -short most frames are left out.
func TestCutAtEveryFrame(t *testing.T) {
	var frames map[bool]int
	synctest.Test(t, func(t *testing.T) {
		frames = steady(t).cutAt(t, false, -1, arrives)
	})
	if t.Failed() || frames[false] < 20 || frames[true] < 20 {
		t.Fatalf("a conversation of %v frames proves little", frames)
	}
	step := 1
	if (raceDetector || testing.Short()) && !*cutAll {
		step = 10
	}
	for down, n := range frames {
		for at := 0; at < n; at += step {
			for how, met := range map[string]fate{"before": cutBefore, "behind": cutAfter} {
				t.Run(fmt.Sprintf("down %t/%d/%s", down, at, how), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) { steady(t).cutAt(t, down, at, met) })
				})
			}
		}
	}
}

// cutAt holds the conversation with a cut at a frame of one direction, and counts the frames.
func (c *counted) cutAt(t *testing.T, down bool, at int, met fate) map[bool]int {
	var mu sync.Mutex
	passed := map[bool]int{}
	c.fate = func(way bool, _ []byte) fate {
		mu.Lock()
		defer mu.Unlock()
		passed[way]++
		if way == down && passed[way] == at+1 {
			return met
		}
		return arrives
	}
	c.hold(t)
	return passed
}

func TestFourMebibyteArgumentAndFiveMebibyteResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := steady(t)
		id, begun := c.open(t), time.Now()
		c.call(t, id, does{Label: "long", Argument: 4 << 20, Bytes: 5 << 20})
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
		c.call(t, id, does{Label: "as long as may be", Bytes: frame.MaxMessage - 1000})
		params := `{"pad":"` + padding(frame.MaxMessage) + `"}`
		_, err := c.host.Accept(t.Context(), caller, id, []wire.Message{parse(t, callWith(params))}, false)
		commontest.EqualIn(t, "a message that is too long is", storage.TooLarge, storage.CodeOf(err))
		c.quiet()
	})
}
