package relay_test

import (
	"flag"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// conversation returns the calls of three clients at once: quick calls and slow ones,
// some with progress, with a question or with long messages both ways, and several of
// one session in flight.
func conversation() [][][]cutCall {
	long := cutPad(125_000)
	return [][][]cutCall{
		{ // a session: its calls run one after the other; sessions run side by side
			{{Label: "a1"}, {Label: "a2", Wait: 400, Progress: 1}},
			{{Label: "a4", Wait: 1500}, {Label: "a5", Wait: 10, Ask: true}},
		},
		{
			{{Label: "b1", Pad: long, Wait: 20}, {Label: "b2"}, {Label: "b3", Wait: 2500}},
			{{Label: "b4", Wait: 300, Ask: true}},
		},
		{
			{{Label: "c1", Result: 125_000}, {Label: "c2", Wait: 5, Progress: 2}},
		},
	}
}

// hold makes the clients do all their calls, and waits until the box sleeps. It checks the
// promises that hold wherever the connection is cut.
func (w *cutWorld) hold(talk [][][]cutCall) {
	var all sync.WaitGroup
	counts := make([]map[int]string, len(talk))
	ids := make([]storage.ID, len(talk))
	calls := 0
	var mu sync.Mutex
	for s, lanes := range talk {
		ids[s], counts[s] = w.open(), map[int]string{}
		for n, lane := range lanes {
			calls += len(lane)
			all.Go(func() {
				for i, c := range lane {
					r := w.call(ids[s], 100*n+i, c)
					mu.Lock()
					if other, ok := counts[s][r.Count]; ok {
						w.t.Errorf("calls %s and %s both counted to %d", c.Label, other, r.Count)
					}
					counts[s][r.Count] = c.Label
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	w.close()
	w.settled(calls)
	for s := range talk {
		w.noted(ids[s], len(counts[s]))
	}
}

// settled checks the box: it had one process from the first call to its clean sleep, and
// executed each call once. Nothing is left in the store.
func (w *cutWorld) settled(calls int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started != 1 || w.runErr != nil {
		w.t.Errorf("%d runners were started, the last ended with %v", w.started, w.runErr)
	}
	total := 0
	for label, times := range w.box.executed {
		if total += times; times != 1 {
			w.t.Errorf("call %s was executed %d times", label, times)
		}
	}
	if total != calls || w.box.closed != 0 {
		w.t.Errorf("%d of %d calls were executed, %d streams were ended by the host", total, calls, w.box.closed)
	}
	b, err := w.memory.Box(w.t.Context(), cutBoxID)
	if err != nil || b.State != storage.Asleep || b.Lost != 0 {
		w.t.Errorf("the box is %q, lost %d: %v", b.State, b.Lost, err)
	}
	if items, err := w.memory.Items(w.t.Context(), cutBoxID); err != nil || len(items) > 0 {
		w.t.Errorf("%d items are left: %v", len(items), err)
	}
}

// noted checks the standalone stream of a session: it has each notification that the process
// counted, once, in order, at the next index.
func (w *cutWorld) noted(id storage.ID, calls int) {
	w.t.Helper()
	page, err := w.memory.Read(w.t.Context(), id, storage.Standalone, 0, 1000)
	if err != nil || page.Gap || len(page.Events) != calls {
		w.t.Errorf("%d standalone events of %d, gap %v: %v", len(page.Events), calls, page.Gap, err)
	}
	seen := map[string]bool{}
	for i, e := range page.Events {
		if e.Index != storage.Index(i+1) || seen[string(e.Raw)] || !strings.Contains(string(e.Raw), `"counted"`) {
			w.t.Errorf("standalone event %d has index %d: %s", i+1, e.Index, e.Raw)
		}
		seen[string(e.Raw)] = true
	}
}

var cutAll = flag.Bool("cut.all", false, "cut each frame in its head, middle and end")

// cutsOf returns the places at which a frame is cut: the boundary before it and one place
// inside. With -cut.all it returns all places.
func cutsOf(frame int) []cutAt {
	inside := []cutAt{inHead, inMiddle, beforeLast}
	if !*cutAll {
		inside = inside[frame%3:][:1]
	}
	return append([]cutAt{before}, inside...)
}

// TestCutAtEveryFrame cuts the runner's connection once, at each frame of the
// conversation, in both directions: at the boundary before it, and inside. A long frame is
// cut at each of its writes. With the race detector or -short most frames are left out.
func TestCutAtEveryFrame(t *testing.T) {
	frames := framesWithoutCuts(t)
	step := 10 / fewer(10)
	var mu sync.Mutex
	var runs, cuts int
	t.Run("cut", func(t *testing.T) {
		for _, way := range []way{upward, downward} {
			for n := range frames[way] {
				if !*cutAll && n%step != 0 {
					continue
				}
				for _, at := range cutsOf(n) {
					point := cutPoint{way: way, frame: n, at: at}
					t.Run(point.String(), func(t *testing.T) {
						t.Parallel()
						var was bool
						synctest.Test(t, func(t *testing.T) {
							w := newCutWorld(t, point, uint64(n))
							w.hold(conversation())
							was = w.wire.cut
						})
						mu.Lock()
						defer mu.Unlock()
						runs++
						if was {
							cuts++
						}
					})
				}
			}
		}
	})
	// Each run draws its times anew, so the last frames of one run may not exist in
	// another.
	if cuts < runs*9/10 {
		t.Errorf("the connection was cut in %d of %d runs", cuts, runs)
	}
	t.Logf("%d frames up, %d down, %d runs, %d cuts", frames[upward], frames[downward], runs, cuts)
}

// framesWithoutCuts counts the frames of a run in which nothing is cut.
func framesWithoutCuts(t *testing.T) (frames [2]int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newCutWorld(t, cutPoint{frame: -1}, 0)
		w.hold(conversation())
		frames = w.wire.frames
	})
	if t.Failed() {
		t.FailNow()
	}
	if frames[upward] < 20 || frames[downward] < 20 {
		t.Fatalf("a conversation of %v frames proves little", frames)
	}
	return frames
}
