// Package display shows people what happens on this machine, with a line for each thing that
// somebody did or must do. On a screen the last lines are rewritten. Elsewhere, as in the log of
// another program, each event is one line with names and values.
package display

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// Terminal writes events for people. Its methods are safe for concurrent use. They do not wait for
// Options.Out: a screen that the user has paused must not block the machine. The caller must call
// Close.
type Terminal struct {
	events  chan journal.Event
	asked   chan func()  // functions that the Terminal's goroutine calls
	dropped atomic.Int64 // events that were left out since the last line about that
	quit    chan struct{}
	done    chan struct{}
	once    sync.Once

	// Only the Terminal's goroutine uses the fields below.
	printer
	begun  Start
	bottom bottom
	rush   rush
	seen   seen
}

// queued is how many events may wait for a slow screen. Further events are left out.
const queued = 4096

// New returns a Terminal. Its goroutine runs until Close.
func New(o Options) *Terminal {
	if o.Width == nil {
		o.Width = func() int { return 80 }
	}
	t := &Terminal{
		printer: printer{opts: o, name: minName}, events: make(chan journal.Event, queued), asked: make(chan func()), quit: make(chan struct{}), done: make(chan struct{}),
		seen: seen{awake: map[int]bool{}, sessions: map[string]bool{}},
	}
	go t.run()
	return t
}

// Event prints an event. If too many events wait, it leaves this one out, and a later line says
// so.
func (t *Terminal) Event(e journal.Event) {
	select {
	case t.events <- e:
	default:
		t.dropped.Add(1)
	}
}

// do makes the Terminal's goroutine call f. It does nothing after Close.
func (t *Terminal) do(f func()) {
	select {
	case t.asked <- f:
	case <-t.done:
	}
}

// Close writes the events that wait, and removes the lines at the bottom. It waits for that for a
// second at most.
func (t *Terminal) Close() {
	t.once.Do(func() { close(t.quit) })
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
	}
}

func (t *Terminal) run() {
	defer close(t.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case e := <-t.events:
			t.take(e)
		case f := <-t.asked:
			f()
		case <-timer.C:
		case <-t.quit:
			for len(t.events) > 0 { // only this goroutine receives
				t.take(<-t.events)
			}
			t.rush.flush(&t.printer, time.Now())
			t.bottom.close()
			t.flush(time.Now())
			return
		}
		now := time.Now()
		t.rush.printSum(&t.printer, now)
		t.left(now)
		t.flush(now)
		timer.Reset(t.next(now))
	}
}

// left prints how many events were left out since the last call of left, if any.
func (t *Terminal) left(now time.Time) {
	if n := t.dropped.Swap(0); n > 0 {
		t.line(now, "", Count(int(n), "event")+" left out: this terminal takes them too slowly")
	}
}

// next returns the time until something must be printed even without an event.
func (t *Terminal) next(now time.Time) time.Duration {
	next := time.Hour
	if due := t.rush.due(); !due.IsZero() {
		next = min(next, due.Sub(now))
	}
	if t.opts.Screen {
		next = min(next, t.bottom.next())
	}
	return max(next, time.Millisecond)
}

// flush writes the lines in t.out to the screen, with the rewritten lines below them.
func (t *Terminal) flush(now time.Time) {
	text := t.out.Bytes()
	if t.opts.Screen {
		text = t.bottom.Frame(text, t.bottomLines(now), t.opts.Width())
	}
	t.out.Reset()
	if len(text) > 0 {
		// There is no better place to report the error than the screen.
		_, _ = t.opts.Out.Write(text)
	}
}

func (t *Terminal) bottomLines(now time.Time) []string {
	if t.bottom.closed || !t.bottom.started {
		return nil
	}
	return append(t.bottom.installing(now, t.name), t.seen.status(now, t.begun.Cost))
}

// ToggleVerbose shows or hides events of functions, boxes and their messages from now on, and
// prints a line about that.
func (t *Terminal) ToggleVerbose() {
	t.do(func() {
		t.opts.Verbose = !t.opts.Verbose
		what := "only servers and calls from now on"
		if t.opts.Verbose {
			what = "with functions, boxes and frames from now on"
		}
		t.line(time.Now(), "", what)
	})
}

// Clients prints how to connect clients.
func (t *Terminal) Clients() { t.do(t.clients) }

// Say prints a line that is about no particular server.
func (t *Terminal) Say(text string) { t.do(func() { t.line(time.Now(), "", wire.OneLine(text)) }) }
