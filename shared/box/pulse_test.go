package box

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/proc"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// timedOut has a call time out. It returns the ids of the two requests by which the box asks
// whether the process works.
func (d dialogue) timedOut() (ping, list string) {
	d.t.Helper()
	hung := d.call(`"hung"`, "hang", "{}")
	synctest.Wait()
	time.Sleep(d.server.ToolTimeout)
	d.final(d.t, hung)
	for _, line := range d.drain() {
		m, _ := wire.Parse(line)
		switch m.Method {
		case wire.MethodPing:
			ping = string(m.ID)
		case wire.MethodToolsList:
			list = string(m.ID)
		}
	}
	if ping == "" || list == "" {
		d.t.Fatalf("the box asks %q and %q", ping, list)
	}
	return ping, list
}

// withTools runs a test with a process that has tools. next has the processes after it.
func withTools(t *testing.T, test func(t *testing.T, d dialogue, next <-chan *playedChild)) {
	t.Helper()
	inBubbleWith(t, Server{ToolTimeout: time.Minute}, `{"tools":{}}`, func(t *testing.T, d dialogue) {
		next := make(chan *playedChild, 10)
		d.spawn = func(proc.Command, proc.Grace) (child, error) {
			c := newPlayedChild()
			next <- c
			return c, nil
		}
		test(t, d, next)
	})
}

// answersCall has the process answer the call that it has read last.
func (d dialogue) answersCall() {
	d.t.Helper()
	for _, line := range d.drain() {
		if m, err := wire.Parse(line); err == nil && m.Method == wire.MethodToolsCall {
			d.hears(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"ok":true}}`, m.ID))
			return
		}
	}
	d.t.Fatal("the process got no call")
}

// Messages that a program sends by itself show that it runs, not that it reads. A file of a
// process that hangs may be half written.
func TestProcessThatHangsIsReplacedForTheNextCall(t *testing.T) {
	withTools(t, func(t *testing.T, d dialogue, next <-chan *playedChild) {
		old := d.groups["s"].current
		d.timedOut()
		d.hears(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"tick"}}`)
		d.hears(`{"jsonrpc":"2.0","id":"k","method":"ping"}`)
		d.drain()
		begun := time.Now()
		call := d.call("2", "t", "{}")
		if strings.Contains(d.told(), "tools/call") {
			t.Error("the process that hangs gets the call")
		}
		d.replaced(next)
		d.result(call)
		if took := time.Since(begun); took > signTime {
			t.Errorf("the call waited %s", took)
		}
		commontest.EqualIn(t, "the end is told as", "", d.state(t, Stopped).Detail)
		d.mu.Lock()
		defer d.mu.Unlock()
		commontest.EqualIn(t, "broken off at work", true, old.keeping.atWork)
	})
}

// replaced plays the next process, and has it answer the call that waits.
func (d *dialogue) replaced(next <-chan *playedChild) {
	d.t.Helper()
	d.played = <-next
	d.greets(`{"tools":{}}`)
	d.answersCall()
}

func TestProcessThatHangsStaysWhileNothingWaits(t *testing.T) {
	withTools(t, func(t *testing.T, d dialogue, next <-chan *playedChild) {
		ping, _ := d.timedOut()
		time.Sleep(2 * signTime)
		if len(next) > 0 || d.asleep() {
			t.Fatal("it was replaced")
		}
		d.hears(`{"jsonrpc":"2.0","id":` + ping + `,"result":{}}`)
		call := d.call("2", "t", "{}")
		d.answersCall()
		d.result(call)

		d.timedOut()
		time.Sleep(2 * signTime)
		last := d.call("3", "t", "{}")
		d.replaced(next) // at once
		d.result(last)
	})
}

func TestEverySignOfLifeKeepsAProcess(t *testing.T) {
	for name, sign := range map[string]func(ping, list string) string{
		"the pong": func(ping, _ string) string { return `{"jsonrpc":"2.0","id":` + ping + `,"result":{}}` },
		"a refusal of the ping": func(ping, _ string) string {
			return `{"jsonrpc":"2.0","id":` + ping + `,"error":{"code":-32601,"message":"no"}}`
		},
		"a list, and no pong": func(_, list string) string { return `{"jsonrpc":"2.0","id":"` + list + `","result":{"tools":[]}}` },
		"the late answer":     func(string, string) string { return `{"jsonrpc":"2.0","id":2,"result":{}}` },
		"a question":          func(string, string) string { return `{"jsonrpc":"2.0","id":"q","method":"roots/list"}` },
	} {
		t.Run(name, func(t *testing.T) {
			withTools(t, func(t *testing.T, d dialogue, next <-chan *playedChild) {
				ping, list := d.timedOut()
				call := d.call("2", "t", "{}")
				synctest.Wait()
				time.Sleep(signTime - time.Second)
				d.hears(sign(ping, list))
				d.answersCall()
				d.result(call)
				time.Sleep(2 * signTime)
				if len(next) > 0 {
					t.Error("it was replaced")
				}
			})
		})
	}
}

// A process that works on another call is not replaced before that call is over. Calls
// that come meanwhile wait, because the process might never read them.
func TestProcessIsNotReplacedWhileACallIsOpen(t *testing.T) {
	withTools(t, func(t *testing.T, d dialogue, next <-chan *playedChild) {
		hung := d.call(`"hung"`, "hang", "{}")
		synctest.Wait()
		time.Sleep(30 * time.Second)
		open := d.call("2", "t", `{"_meta":{}}`)
		synctest.Wait()
		time.Sleep(31 * time.Second)
		d.final(t, hung)
		later := d.call("3", "t", "{}")
		time.Sleep(2 * signTime)
		if len(next) > 0 || d.ended(open) {
			t.Fatal("the process was replaced at work")
		}
		time.Sleep(20 * time.Second)
		if !d.ended(open) {
			t.Fatal("the second call has no end")
		}
		d.final(t, open)
		d.replaced(next)
		d.result(later)
	})
}

// A process that has nothing to list might just not know ping.
func TestProcessWithoutListsIsNeverReplaced(t *testing.T) {
	inBubble(t, Server{ToolTimeout: time.Minute}, func(t *testing.T, d dialogue) {
		hung := d.call("1", "hang", "{}")
		synctest.Wait()
		time.Sleep(time.Minute + time.Second)
		d.failure(hung)
		if told := d.told(); strings.Contains(told, wire.MethodPing) {
			t.Errorf("the process was told %s", told)
		}
		d.drain()
		call := d.call("2", "t", "{}")
		d.answersCall()
		d.result(call)
	})
}
