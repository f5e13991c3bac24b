package transport_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
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
	scenario(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		crowd := v.crowd(5)
		v.push("once")
		first := crowd[0].end()
		time.Sleep(first.retry(t))
		back := v.listen(first.lastID(t))
		all := first.datas(t)
		if len(all) != 1 {
			t.Errorf("the first heard %v", all)
		}
		for i, c := range crowd[1:] {
			a := c.end()
			if !strings.Contains(a.body, ": keep-alive\n") {
				t.Errorf("shadow %d got no comment: %s", i+1, a.body)
			}
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
	scenario(t, func(t *testing.T, w *world) {
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

// a client resumes the standalone stream while a primary lives. It becomes a standby.
func TestResumedListenerWaitsBehindALivingPrimary(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		v.push("one")
		last := v.get("").lastID(t)
		time.Sleep(2 * time.Minute)
		primary := v.listen("")
		settle()
		resumed := v.listen(last)
		settle()
		v.push("two")
		if !slices.Contains(primary.seen().datas(t), said("two")) {
			t.Errorf("the primary heard %v", primary.seen().datas(t))
		}
		if heard := resumed.seen().datas(t); len(heard) != 0 {
			t.Errorf("the other one heard %v", heard)
		}
		if id, err := storage.ParseEventID(resumed.seen().lastID(t)); err != nil || id.Index != 1 {
			t.Errorf("the other one was given place %v, %v; it had told 1", id, err)
		}
	})
}

// C-41, C-44: a fresh listener waits and does not replace a living one. Otherwise two
// clients of one session would replace each other for ever. As long as both come back
// as told, one of them gets each event, once.
func TestListenersOfOneSessionDoNotDriveOutOneAnother(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		v := w.visit("pushy")
		one, two := &follower{v: v}, &follower{v: v, due: time.Now().Add(time.Second)}
		var want []string
		follow(t, 600, func(second int) {
			if second%30 == 15 {
				v.push(fmt.Sprint(second))
				want = append(want, said(fmt.Sprint(second)))
			}
		}, one, two)
		for _, f := range []*follower{one, two} {
			if f.opened > 40 {
				t.Errorf("a listener was opened %d times in ten minutes", f.opened)
			}
		}
		all := append(one.heard, two.heard...)
		slices.Sort(want)
		slices.Sort(all)
		commontest.SameIn(t, "heard by both together", want, all)
	})
}

// of 35 listeners one is the primary and 32 are standbys. The endpoint ends the
// responses of the two that have waited longest.
func TestOf35ListenersTheOldestThatWaitAreLetGo(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.limits.Hold = 10 * time.Minute
		v := w.visit("pushy")
		crowd := v.crowd(35)
		time.Sleep(time.Minute)
		v.push("once")
		heard, gone := 0, []int{}
		for i, c := range crowd {
			a := c.seen()
			if a.status != http.StatusOK || !isPriming(a.events(t)[0]) {
				t.Errorf("listener %d: got %d %s", i, a.status, a.body)
			}
			heard += len(a.datas(t))
			if c.isOver() {
				gone = append(gone, i)
			}
		}
		commontest.SameIn(t, "let go", []int{1, 2}, gone)
		if heard != 1 {
			t.Errorf("heard %d times", heard)
		}
		for _, c := range crowd {
			c.leave()
		}
	})
}

// C-37, C-38: while a client listens, the messages of a call go to the call. The messages
// that belong to no call go to the listener.
func TestCallKeepsItsOwnThoughSomebodyListens(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
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

// C-39: a server's tools change while a session lives. The listener gets the notification,
// and the next tools/list shows the change.
func TestToolThatComesAndGoesIsToldAndListed(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		tools := []string{}
		change := func(how func()) func(run) {
			return func(r run) {
				how()
				r.outside().append(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, false)
				r.end(`{}`)
			}
		}
		w.backend.tool("install", change(func() { tools = append(tools, "echo") }))
		w.backend.tool("uninstall", change(func() { tools = nil }))
		w.backend.tool("tools/list", func(r run) { r.end(fmt.Sprintf(`{"tools":%q}`, tools)) })
		v := w.visit("pushy")
		listener := v.listen("")
		for i, step := range []struct{ tool, want string }{{"install", `["echo"]`}, {"uninstall", `[]`}} {
			v.call(step.tool)
			if a := v.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); !strings.Contains(a.body, `"tools":`+step.want) {
				t.Errorf("%s: got %s", step.tool, a.body)
			}
			if told := listener.seen().datas(t); len(told) != i+1 {
				t.Errorf("%s: the listener heard %v", step.tool, told)
			}
		}
	})
}
