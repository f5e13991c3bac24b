package transport_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// crowd opens listeners a second apart. The first becomes the primary.
func (c *client) crowd(n int) []*conn {
	var crowd []*conn
	for range n {
		crowd = append(crowd, c.listen(""))
		time.Sleep(time.Second)
	}
	return crowd
}

// C-36, C-41, C-74: until the last of five listeners is closed, each event is sent once, to one of
// them. When the time of the first is over, its client comes back, and no other listener
// gets the old events again.
func TestOfStaggeredListenersOneHearsEachEvent(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		crowd := v.crowd(5)
		v.push("once")
		first := crowd[0].end()
		time.Sleep(first.retry(t))
		back := v.listen(first.lastID(t))
		all := first.datas(t)
		commontest.EqualIn(t, "events of the first", 1, len(all))
		for i, c := range crowd[1:] {
			a := c.end()
			commontest.Contains(t, fmt.Sprint("shadow ", i+1), ": keep-alive\n", a.body)
			all = append(all, a.datas(t)...)
		}
		v.push("and again")
		all = append(all, back.end().datas(t)...)
		commontest.SameIn(t, "heard by all together", []string{said("once"), said("and again")}, all)
	})
}

// the primary dies. When its lease is over, the next listener gets
// the events that the dead one had not reported, and all later events.
func TestNextListenerReplacesADeadPrimary(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		primary := v.listen("")
		v.push("one")
		if diff := cmp.Diff([]string{said("one")}, primary.leave().datas(t)); diff != "" {
			t.Fatal(diff)
		}
		v.push("two") // nobody is there
		var heard []string
		last := ""
		for range 5 {
			a := v.get(last)
			if heard, last = append(heard, a.datas(t)...), a.lastID(t); len(heard) > 0 {
				break
			}
			time.Sleep(2 * time.Second)
		}
		v.push("three")
		heard = append(heard, v.get(last).datas(t)...)
		commontest.SameIn(t, "the next one", []string{said("one"), said("two"), said("three")}, heard)
	})
}

// C-41, C-44: a fresh listener waits and does not replace a living one. Otherwise two
// clients of one session would replace each other for ever. As long as both come back
// as told, one of them gets each event, once.
func TestListenersOfOneSessionDoNotDriveOutOneAnother(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		begun := time.Now()
		var mu sync.Mutex
		var heard, want []string
		follow := func() { // comes back as the server tells it
			last, opened := "", 0
			for ; time.Since(begun) < 10*time.Minute; opened++ {
				a := v.get(last)
				mu.Lock()
				heard, last = append(heard, a.datas(t)...), a.lastID(t)
				mu.Unlock()
				time.Sleep(a.retry(t))
			}
			if opened > 40 {
				t.Errorf("a listener was opened %d times in ten minutes", opened)
			}
		}
		var listeners sync.WaitGroup
		listeners.Go(follow)
		time.Sleep(time.Second)
		listeners.Go(follow)
		for i := range 19 {
			time.Sleep(30 * time.Second)
			v.push(fmt.Sprint(i))
			want = append(want, said(fmt.Sprint(i)))
		}
		listeners.Wait()
		commontest.SameIn(t, "heard by both together", want, heard)
	})
}

// C-37, C-38: while a client listens, the messages of a call go to the call. The messages
// that belong to no call go to the listener.
func TestCallKeepsItsOwnThoughSomebodyListens(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.backend.tool("steps", func(r run) {
			r.say("of the call")
			r.outside().say("of nobody")
			r.end(`{}`)
		})
		v := w.visit("pushy")
		listener := v.listen("")
		settle()
		commontest.SameIn(t, "the call", []string{said("of the call"), resultOf(`{}`)}, v.call("steps").datas(t))
		commontest.SameIn(t, "the listener", []string{said("of nobody")}, listener.seen().datas(t))
	})
}
