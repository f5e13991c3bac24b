// Package journal reports what happens to the processes of Dormouse on this machine,
// and counts the running ones.
package journal

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Kinds of [Event]. A wake means that a process exists; each process has exactly one
// wake and exactly one end (sleep or crash).
const (
	FunctionWake  = "function.wake"  // a process was started
	FunctionReady = "function.ready" // it asked for its first invocation; Duration: since its start
	FunctionSleep = "function.sleep" // it was stopped because it was idle, or at the end; Duration: its life
	FunctionCrash = "function.crash" // it ended in another way; Detail: how; Duration: its life

	BoxWake  = "box.wake"  // the runner of a box was started
	BoxSleep = "box.sleep" // it ended by itself or was asked to; Duration: its life
	BoxCrash = "box.crash" // it ended in another way; Detail: how; Duration: its life

	// ProcessCount says that the last process has ended. The Recorder creates it.
	ProcessCount = "process.count"
)

// Event is one thing that happened to a process of Dormouse on this machine.
type Event struct {
	Time     time.Time     // when; set by the recorder if zero
	Kind     string        // one of the constants above
	Name     string        // of the function, or of the server in the box
	PID      int           // of the process; an event without one is not counted
	Detail   string        // one line for people, may be empty
	Duration time.Duration // as the kind says; 0 where it says nothing
	Running  int           // processes running now in all; set by the recorder
}

// Recorder counts the running processes and passes events to its printers. A nil
// *Recorder records nothing. It is safe for concurrent use.
type Recorder struct {
	mu       sync.Mutex
	running  map[int]bool
	printers []func(Event)
}

// NewRecorder returns a recorder that calls each printer with each event, one after
// another and in order. A printer must not block. It must call neither the recorder
// nor code that records.
func NewRecorder(printers ...func(Event)) *Recorder {
	return &Recorder{running: map[int]bool{}, printers: printers}
}

// Record completes e and passes it to the printers. After the end of the last process
// it adds an event of kind [ProcessCount].
func (r *Recorder) Record(e Event) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	before := len(r.running)
	if e.PID != 0 {
		switch e.Kind {
		case FunctionWake, BoxWake:
			r.running[e.PID] = true
		case FunctionSleep, FunctionCrash, BoxSleep, BoxCrash:
			delete(r.running, e.PID)
		}
	}
	e.Running = len(r.running)
	r.print(e)
	if before > 0 && e.Running == 0 {
		r.print(Event{Time: e.Time, Kind: ProcessCount})
	}
}

// Running returns how many processes run now.
func (r *Recorder) Running() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}

func (r *Recorder) print(e Event) {
	for _, p := range r.printers {
		p(e)
	}
}

// HumanPrinter returns a printer of aligned lines for a terminal:
//
//	15:04:05.123  function.wake   http          pid 4242            1 process
//	15:04:05.127  function.ready  http          pid 4242    3.4 ms  1 process
//	15:04:16.540  process.count                                     0 processes
func HumanPrinter(w io.Writer) func(Event) {
	return func(e Event) {
		var pid, took, detail string
		if e.PID != 0 {
			pid = fmt.Sprintf("pid %d", e.PID)
		}
		if e.Duration != 0 {
			took = span(e.Duration)
		}
		processes := "processes"
		if e.Running == 1 {
			processes = "process"
		}
		if e.Detail != "" {
			detail = "  " + e.Detail
		}
		// If the terminal cannot be written to, there is no better place to report
		// it.
		_, _ = fmt.Fprintf(w, "%s  %-14s  %-12s  %-11s %9s  %d %s%s\n",
			e.Time.Local().Format("15:04:05.000"), e.Kind, e.Name, pid, took, e.Running, processes, detail)
	}
}

// span formats d with at most three digits before the unit, to fit a column.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}

// JSONPrinter returns a printer of one JSON object a line, with the keys time (RFC
// 3339, UTC), kind, name, pid, detail, duration_ms and running. It leaves out name,
// pid, detail and duration_ms when they are empty.
func JSONPrinter(w io.Writer) func(Event) {
	type line struct {
		Time       time.Time `json:"time"`
		Kind       string    `json:"kind"`
		Name       string    `json:"name,omitempty"`
		PID        int       `json:"pid,omitempty"`
		Detail     string    `json:"detail,omitempty"`
		DurationMS float64   `json:"duration_ms,omitempty"`
		Running    int       `json:"running"`
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return func(e Event) {
		// As in HumanPrinter; and this type always encodes.
		_ = enc.Encode(line{
			Time: e.Time.UTC(), Kind: e.Kind, Name: e.Name, PID: e.PID, Detail: e.Detail,
			DurationMS: float64(e.Duration.Microseconds()) / 1000, Running: e.Running,
		})
	}
}
