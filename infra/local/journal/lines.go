package journal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Lines creates journal events from two sources: the events of package observe, and the log
// lines of runners. It is safe for concurrent use.
type Lines struct {
	to *Recorder
	Options

	mu      sync.Mutex
	callers map[string]caller          // the last caller of each session
	starts  map[string]*start          // processes that are not ready yet, by server and process
	open    map[storage.StreamID]Event // calls whose end another event will report, by the stream of their response
	work    map[string]time.Time       // time of the last request to each server; see Asleep
	refused map[string]time.Time       // time of the last event of kind Refused, by caller and reason
}

// caller identifies the client of a session.
type caller struct{ tenant, principal, client string }

// start is what is known of a server that is being started.
type start struct {
	installs time.Time     // when the current install began; zero if there is none
	install  time.Duration // how long the finished installs took
}

// maxKnown limits how many sessions, starts and calls Lines remembers. At the limit it forgets all
// of them; later events about them have fewer fields.
const maxKnown = 10_000

// Options of [NewLines]. All functions but Trace are required.
type Options struct {
	Verbose bool                               // also record events of kind Frame
	Hide    func(string) string                // removes secrets of servers from a text
	Tools   func(tenant, server string) string // number of tools, such as "3 tools"; "" if unknown
	// Lists reports whether metrics may count a tool by its name: a list of the server has the
	// tool, or no list of the server is known.
	Lists func(tenant, server, tool string) bool
	// Held returns how many tools of a server are held back, and how they differ from the tools
	// that the operator has accepted.
	Held func(server string) (detail string, lines []string)
	// Places returns the lines of source code that a process's last output names.
	Places func(server, process string) []string
	Trace  func(Event) // gets events of kinds Request, Deliver and Stored; must not block; may be nil
}

// NewLines returns a Lines that passes events to a recorder.
func NewLines(to *Recorder, o Options) *Lines {
	return &Lines{
		to: to, Options: o,
		callers: map[string]caller{}, starts: map[string]*start{}, open: map[storage.StreamID]Event{}, work: map[string]time.Time{}, refused: map[string]time.Time{},
	}
}

// boxLine has the fields of a runner's log line.
type boxLine struct {
	Time     time.Time `json:"time"`
	Server   string    `json:"server"`
	Session  string    `json:"session_id"`
	Client   string    `json:"client"`
	Trace    string    `json:"trace"`
	Process  string    `json:"process"`
	PID      int       `json:"pid"`
	State    string    `json:"state"`
	Step     string    `json:"step"`
	Phase    string    `json:"phase"`
	Why      string    `json:"why"`
	MS       float64   `json:"duration_ms"`
	Followed bool      `json:"followed"` // another process replaces this one
	Refused  string    `json:"refused"`  // what the sandbox refused to the process; such a line says nothing about the process's state
}

// Box takes a log line of a box's runner. tenant and server are those of the box. Both may be "" if
// the line itself names the server and the session.
func (l *Lines) Box(tenant, server, line string) {
	if l.Trace != nil && strings.Contains(line, `"msg":"deliver"`) {
		var s boxLine
		if json.Unmarshal([]byte(line), &s) == nil && s.Trace != "" {
			l.Trace(Event{Time: s.Time, Kind: Deliver, Name: server, Session: s.Session, Trace: s.Trace})
		}
		return
	}
	if !strings.Contains(line, `"msg":"process"`) {
		return
	}
	var s boxLine
	if json.Unmarshal([]byte(line), &s) == nil {
		s.Server = cmp.Or(server, s.Server)
		tools := ""
		if s.State == "ready" {
			tools = l.Tools(cmp.Or(tenant, l.tenantOf(s.Session)), s.Server)
		}
		l.process(&s, tools)
	}
}

// tenantOf returns the tenant of the session's last caller, or "" if nobody has called.
func (l *Lines) tenantOf(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.callers[id].tenant
}

// Observe takes an event that a function reports. It also removes secrets of servers from e.Why and e.Ended.
func (l *Lines) Observe(e *observe.Event) {
	for i, end := range e.Ended {
		l.ended(end)
		e.Ended[i].Why = l.Hide(end.Why)
	}
	switch e.Kind {
	case observe.API:
		if e.Refused {
			l.refuse(e)
		}
	case observe.Request, observe.Socket:
		l.request(e)
		if l.Trace != nil && e.RPCMethod != "" && e.Tool == "" {
			l.Trace(event(Request, e))
		}
	case observe.Work:
		l.knows(e)
	case observe.Held:
		held := Event{Kind: ToolsHeld, Name: e.Server, Hint: "take with: dormouse accept " + e.Server}
		if held.Detail, held.Lines = l.Held(e.Server); held.Detail != "" {
			l.to.Record(held)
		}
	case observe.Frame:
		if l.Trace != nil {
			for _, trace := range e.Traces {
				l.Trace(Event{Time: time.Now(), Kind: Stored, Name: e.Server, Session: string(e.Session), Trace: trace, Duration: e.Took})
			}
		}
		if l.Verbose {
			l.to.Record(Event{Kind: Frame, Name: e.Server, Detail: e.Type, Session: string(e.Session), Duration: e.Took})
		}
	}
	e.Why = l.Hide(e.Why)
}

// noWords is the reason of a failed call whose event has no Why.
const noWords = "the tool reported an error"

// request takes an event about the end of a client's request.
func (l *Lines) request(of *observe.Event) {
	l.knows(of)
	if of.Refused {
		l.refuse(of)
		return
	}
	switch {
	case of.Outcome == "":
		return
	case of.Tool == "": // the request reports the end of a call that an earlier request began
		why := of.Why
		if of.Outcome == observe.Failed {
			why = cmp.Or(why, noWords)
		}
		l.ended(observe.Ended{Stream: of.Stream, Why: why})
		return
	}
	if of.Stream != "" {
		l.goesOn(of.Stream)
	}
	e := event(Call, of)
	e.Unlisted = !l.Lists(e.Tenant, e.Name, of.Tool)
	switch of.Outcome {
	case observe.Failed, observe.Refused:
		e.Reason = cmp.Or(l.reason(e.Name, of.Why), noWords)
	case observe.Open:
		if of.Stream == "" {
			return // the client got a question, and answers it in a new call
		}
		e.Time = time.Now().Add(-e.Duration)
		l.later(of.Stream, e)
		return
	}
	l.to.Record(e)
}

// refuse records a refused request that calls no tool.
func (l *Lines) refuse(of *observe.Event) {
	from := cmp.Or(of.Caller, &observe.Caller{})
	e := Event{
		Kind: Refused, Name: cmp.Or(of.Server, plain(from.Server)), Tenant: cmp.Or(of.Tenant, from.Tenant), Principal: cmp.Or(of.Principal, from.Principal),
		Code: string(of.Code), Trace: of.Trace, Reason: l.reason(of.Server, of.Why), Measured: Measured{Sender: senderOf(of)},
	}
	if l.repeated(e.Principal + "\x00" + e.Key + "\x00" + e.Address + "\x00" + e.Reason) {
		e.Kind = RefusedAgain
	}
	l.to.Record(e)
}

func senderOf(of *observe.Event) Sender {
	from := cmp.Or(of.Caller, &observe.Caller{})
	return Sender{Key: plain(from.Key), Address: plain(from.Address), Refusal: of.Refusal}
}

// event returns a journal event of this kind for a request.
func event(kind string, of *observe.Event) Event {
	e := Event{
		Kind: kind, Name: of.Server, Duration: of.Took, Tenant: of.Tenant, Principal: of.Principal, Client: plain(of.Client), Tool: plain(of.Tool),
		Code: string(of.Code), Session: string(of.Session), Trace: of.Trace,
		Measured: Measured{Method: plain(of.RPCMethod), Parent: of.Parent, Protocol: plain(of.Protocol), In: of.In, Out: of.Out, Sender: senderOf(of)},
	}
	if of.Spent != nil {
		e.Wakes = of.Spent.Wakes
	}
	return e
}

// repeated reports whether a refusal should only be counted, because the last minute had a refusal
// with the same caller and reason, or too many refusals in all. The argument key names caller and
// reason.
func (l *Lines) repeated(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.refused[key]) < time.Minute {
		return true
	}
	maps.DeleteFunc(l.refused, func(_ string, at time.Time) bool { return time.Since(at) >= time.Minute })
	if len(l.refused) >= maxReasons {
		return true // a caller that invents names must not fill the screen
	}
	l.refused[key] = time.Now()
	return false
}

// maxReasons limits how many different refusals are recorded as Refused in a minute.
const maxReasons = 100

// knows remembers the client of a session, and that the session's server has a request now.
func (l *Lines) knows(s *observe.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Server != "" && s.Principal != "" {
		l.work[s.Server] = time.Now()
	}
	id := string(s.Session)
	if id == "" || s.Principal == "" {
		return
	}
	if len(l.callers) >= maxKnown {
		clear(l.callers)
	}
	known := l.callers[id]
	l.callers[id] = caller{cmp.Or(s.Tenant, known.tenant), s.Principal, cmp.Or(plain(s.Client), known.client)}
}

// process handles a log line with the state of a server's process; see box.ProcessState. The argument
// tools is the result of [Options].Tools if the process is ready.
func (l *Lines) process(s *boxLine, tools string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := s.Server + "\x00" + s.Process
	from := l.callers[s.Session]
	e := Event{
		Name: s.Server, PID: s.PID, Session: s.Session, Process: s.Process, Tenant: from.tenant,
		Principal: from.principal, Client: cmp.Or(plain(s.Client), from.client),
	}
	if s.Refused != "" {
		e.Detail = plain(l.Hide(s.Refused))
		l.record(e, ServerRefused)
		return
	}
	begun := l.starts[key]
	if (s.State == "staging" || s.State == "started") && begun == nil {
		begun = &start{}
		if len(l.starts) >= maxKnown {
			clear(l.starts)
		}
		l.starts[key] = begun
		l.record(e, ServerStarting)
	}
	switch s.State {
	case "staging":
		l.stage(e, begun, s)
	case "started":
		begun.endInstall()
	case "ready":
		delete(l.starts, key)
		if begun != nil {
			e.Install = begun.install
		}
		e.Duration, e.Detail = time.Duration(s.MS*float64(time.Millisecond)), tools
		l.record(e, ServerReady)
	case "stopped":
		if s.Followed {
			return
		}
		delete(l.starts, key)
		l.record(e, ServerStopped)
	case "exited":
		delete(l.starts, key)
		e.Phase, e.Reason = s.Phase, cmp.Or(l.reason(s.Server, s.Why), "it ended")
		for _, at := range l.Places(s.Server, s.Process) {
			e.Lines = append(e.Lines, plain(l.Hide(at)))
		}
		l.record(e, ServerFailed)
	}
}

// stage handles a log line about a process that is being prepared: an install may begin or end.
func (l *Lines) stage(e Event, begun *start, s *boxLine) {
	if s.Phase != "dep_install" || strings.HasPrefix(s.Step, "installed ") {
		begun.endInstall()
		return
	}
	if begun.installs.IsZero() {
		begun.installs = time.Now()
	}
	e.Detail = plain(s.Step)
	l.record(e, ServerInstalling)
}

func (b *start) endInstall() {
	if b != nil && !b.installs.IsZero() {
		b.install += time.Since(b.installs)
		b.installs = time.Time{}
	}
}

func (l *Lines) record(e Event, kind string) {
	e.Kind = kind
	l.to.Record(e)
}

// Asleep records that a box of a server has ended normally, and how long after the last request.
func (l *Lines) Asleep(server string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := Event{Kind: ServerAsleep, Name: server}
	if last := l.work[server]; !last.IsZero() {
		e.Duration = time.Since(last)
	}
	l.to.Record(e)
}

// maxReason is the length of the longest reason, in characters.
const maxReason = 400

// reason returns the first line of an error text, without secrets. It removes the server's name at
// the beginning, because an event has the name in a field.
func (l *Lines) reason(server, text string) string {
	if text == "" {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return plain(l.Hide(strings.TrimPrefix(first, fmt.Sprintf("server %q: ", server))))
}

// plain returns at most maxReason characters of a text. It replaces each character that could
// control a terminal by a space.
func plain(text string) string {
	if len(text) > 4*maxReason {
		text = text[:4*maxReason]
	}
	text = wire.OneLine(text)
	if runes := []rune(text); len(runes) > maxReason {
		text = string(runes[:maxReason-1]) + "…"
	}
	return text
}
