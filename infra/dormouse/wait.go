package dormouse

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/display"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

const (
	// unseen is how long a wait may take before it is shown.
	unseen = 150 * time.Millisecond
	// redraw is the time between two updates of the terminal.
	redraw = 100 * time.Millisecond
)

// waits shows what a command waits for: a line for each server, with its phase and the time so
// far. On a terminal the lines are rewritten, and removed at the end. If the output is no
// terminal, each new phase is a new line. A very short wait is not shown (unseen). The methods are
// safe for concurrent use.
type waits struct {
	out   io.Writer
	width func() int // width of the terminal; nil if the output is no terminal
	begun time.Time
	stop  chan struct{}
	gone  chan struct{}

	mu   sync.Mutex
	rows []wait
	display.Lines
}

type wait struct {
	name, phase string
	took        time.Duration // how long this wait took; 0 while it goes on
	said        string        // the phase in the last line, if the output is no terminal
}

// waits begins to show what the command waits for. The caller must call end.
func (t *terminal) waits(phase string, names ...string) *waits {
	o := says{}.display(t.err, os.Getenv)
	w := &waits{out: o.Out, begun: time.Now(), stop: make(chan struct{}), gone: make(chan struct{})}
	if _, ok := o.Out.(*os.File); !ok { // the output is a buffer of this program, not a file
		w.out = io.Discard
	}
	if o.Screen {
		w.width = o.Width
	}
	for _, name := range names {
		w.rows = append(w.rows, wait{name: wire.OneLine(name), phase: phase})
	}
	go w.show()
	return w
}

func (w *waits) show() {
	defer close(w.gone)
	timer := time.NewTimer(unseen)
	defer timer.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-timer.C:
		}
		w.draw()
		timer.Reset(redraw)
	}
}

// phase sets what is being done for a server.
func (w *waits) phase(name, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := w.row(name); i >= 0 && w.rows[i].took == 0 && text != "" {
		w.rows[i].phase = wire.OneLine(text)
	}
}

// over ends the wait for one server. The argument text is the outcome.
func (w *waits) over(name, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := w.row(name); i >= 0 {
		w.rows[i].phase, w.rows[i].took = wire.OneLine(text), max(1, time.Since(w.begun))
	}
}

func (w *waits) row(name string) int {
	return slices.IndexFunc(w.rows, func(r wait) bool { return r.name == wire.OneLine(name) })
}

// end stops showing the waits. If stay is true, their last lines stay on the terminal.
func (w *waits) end(stay bool) {
	close(w.stop)
	<-w.gone
	switch {
	case stay:
		w.draw()
		if w.width != nil && len(w.rows) > 0 {
			_, _ = io.WriteString(w.out, "\n")
		}
	case w.width != nil:
		_, _ = w.out.Write(w.Frame(nil, nil, 0))
	}
}

func (w *waits) draw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.width == nil {
		w.lines()
		return
	}
	name, room := 0, max(20, w.width())-1
	for _, r := range w.rows {
		name = max(name, len([]rune(r.name)))
	}
	var lines []string
	for _, r := range w.rows {
		tail := " … " + seconds(time.Since(w.begun))
		if r.took > 0 {
			tail = "  " + seconds(r.took)
		}
		head := fmt.Sprintf("%-*s  ", name, r.name)
		lines = append(lines, head+clip(r.phase, max(8, room-len([]rune(head+tail))))+tail)
	}
	_, _ = w.out.Write(w.Frame(nil, lines, room+1))
}

// lines writes a line for each server whose phase is new.
func (w *waits) lines() {
	for i := range w.rows {
		r := &w.rows[i]
		switch {
		case r.phase == r.said:
			continue
		case r.took > 0:
			_, _ = fmt.Fprintf(w.out, "%s: %s, %s\n", r.name, r.phase, seconds(r.took))
		default:
			_, _ = fmt.Fprintf(w.out, "%s: %s\n", r.name, r.phase)
		}
		r.said = r.phase
	}
}

// seconds formats a duration in seconds, below ten with one decimal.
func seconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
}

// lookEvery is the time between two requests for the states of processes.
const lookEvery = 200 * time.Millisecond

// follows begins to show in w the phases of servers that are starting. The caller must call end.
func (c *client) follows(ctx context.Context, w *waits) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() { c.follow(ctx, w) })
	return func() {
		stop()
		following.Wait()
	}
}

// follow asks the API for the states of processes until ctx ends, and shows them in w. It ignores
// errors.
func (c *client) follow(ctx context.Context, w *waits) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var status api.Status
		if c.call(ctx, http.MethodGet, "processes", nil, &status) != nil {
			continue
		}
		seen := map[string]bool{}
		for _, p := range status.Processes { // the newest first
			if seen[p.Server] {
				continue
			}
			seen[p.Server] = true
			switch p.State {
			case "staging":
				w.phase(p.Server, p.Detail)
			case "started":
				w.phase(p.Server, "starting")
			}
		}
	}
}
