package journal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/dormouse-mcp/dormouse/shared/core/observe"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Lines makes journal events of two sources: the events that functions observe, and the log lines
// of runners, which are programs of their own. It is safe for concurrent use.
type Lines struct {
	to *Recorder
	Options

	mu      sync.Mutex
	callers map[string]caller          // by session
	starts  map[string]*start          // by server and process
	open    map[storage.StreamID]Event // calls whose end comes in a later event, by the stream of their answer
	work    map[string]time.Time       // the last work, by server
	refused map[string]time.Time       // when a refusal was last recorded as Refused, by caller and reason
}

// caller identifies the client of a session.
type caller struct{ tenant, principal, client string }

// start is a process of a server that is not ready yet.
type start struct {
	installs time.Time     // when the install that goes on began; zero if none goes on
	install  time.Duration // how long the installs took that have ended
}

// maxKnown limits the sessions, starts and calls that Lines remembers. Events about
// forgotten ones have fewer fields.
const maxKnown = 10_000

// Options of Lines. All functions but Trace are required.
type Options struct {
	Verbose bool                               // records events of kind Frame, too
	Hide    func(string) string                // removes the secrets of servers from a text
	Tools   func(tenant, server string) string // such as "3 tools"; "" if that is not known
	// Lists reports whether metrics may count a tool by its name: a list of the server has the
	// tool, or no list of the server is known.
	Lists func(tenant, server, tool string) bool
	// Held says how many tools of a server are held back, and how they differ from those that
	// the operator has accepted.
	Held func(server string) (detail string, lines []string)
	// Places returns the lines of source code that the last words of a process name.
	Places func(server, process string) []string
	Trace  func(Event) // gets events of kinds Request, Deliver and Stored; must not block; nil for nobody
}

// NewLines returns a Lines that passes events to a recorder.
func NewLines(to *Recorder, o Options) *Lines {
	return &Lines{
		to: to, Options: o,
		callers: map[string]caller{}, starts: map[string]*start{}, open: map[storage.StreamID]Event{}, work: map[string]time.Time{}, refused: map[string]time.Time{},
	}
}

// boxLine holds the fields of a log line of a runner.
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
	Hint     string    `json:"hint"`
	MS       float64   `json:"duration_ms"`
	Followed bool      `json:"followed"` // another process takes the place of this one
	Refused  string    `json:"refused"`  // what the sandbox refused the process; the line then says nothing about its state
}

// Box takes a log line of the runner of a box. tenant and server are those of the box. They may
// be "" if the line names the server and the session.
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

// tenantOf returns the tenant of a session's last caller, "" if nobody has called.
func (l *Lines) tenantOf(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.callers[id].tenant
}

// Observe takes an event of a function. It removes the secrets of servers from the event.
func (l *Lines) Observe(e *observe.Event) {
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
		for _, end := range e.Ended {
			l.ended(end)
		}
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

// noWords is the reason of a failed call whose event has no reason.
const noWords = "the tool reported an error"

// request takes the end of a client's request.
func (l *Lines) request(of *observe.Event) {
	l.knows(of)
	if of.Refused {
		l.refuse(of)
		return
	}
	switch {
	case of.Outcome == "":
		return
	case of.Tool == "": // this request reports the end of a call that an earlier request began
		why := of.Why
		if of.Outcome == observe.Failed {
			why = cmp.Or(why, noWords)
		}
		l.ended(observe.Ended{Stream: of.Stream, Why: why})
		return
	}
	e := event(Call, of)
	e.Unlisted = !l.Lists(e.Tenant, e.Name, of.Tool)
	switch of.Outcome {
	case observe.Failed, observe.Refused:
		e.Reason = cmp.Or(l.reason(e.Name, of.Why), noWords)
	case observe.Open:
		e.Time = time.Now().Add(-e.Duration)
		l.later(of.Stream, e)
		return
	}
	l.to.Record(e)
}

// refuse takes a request that calls no tool and was refused.
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

// event returns the event about a request.
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

// repeated reports whether the refusal of a caller is not to be shown again: the last minute has
// had one for the same reason, or too many of any kind. of names the caller and the reason.
func (l *Lines) repeated(of string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.refused[of]) < time.Minute {
		return true
	}
	maps.DeleteFunc(l.refused, func(_ string, at time.Time) bool { return time.Since(at) >= time.Minute })
	if len(l.refused) >= maxReasons {
		return true // a caller that makes up names must not fill the screen
	}
	l.refused[of] = time.Now()
	return false
}

// maxReasons limits the refusals that are recorded as Refused in a minute.
const maxReasons = 100

// knows remembers the client of a session, and when the session's server last had work.
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

// process takes the state that a server's process has reached; the states are those of
// box.ProcessState. tools is the answer of [Options].Tools for a process that is ready.
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
		e.Phase = s.Phase
		e.Reason, e.Hint = cmp.Or(l.reason(s.Server, s.Why), "it ended"), plain(s.Hint)
		for _, at := range l.Places(s.Server, s.Process) {
			e.Lines = append(e.Lines, plain(l.Hide(at)))
		}
		l.record(e, ServerFailed)
	}
}

// stage takes a step of a preparation.
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

// Asleep records that a box of a server has ended.
func (l *Lines) Asleep(server string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := Event{Kind: ServerAsleep, Name: server}
	if last := l.work[server]; !last.IsZero() {
		e.Duration = time.Since(last)
	}
	l.to.Record(e)
}

// maxReason is the longest reason, in characters.
const maxReason = 400

// reason returns the first line of a text, without secrets, and without the name of the server
// at its beginning, because events have the name in a field of its own.
func (l *Lines) reason(server, text string) string {
	if text == "" {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return plain(l.Hide(strings.TrimPrefix(first, fmt.Sprintf("server %q: ", server))))
}

// plain returns a text of at most maxReason characters, with a space for each character that
// could control a terminal.
func plain(text string) string {
	if len(text) > 4*maxReason {
		text = text[:4*maxReason]
	}
	text = strings.Map(func(r rune) rune { // returns the same string if nothing changes
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if runes := []rune(text); len(runes) > maxReason {
		text = string(runes[:maxReason-1]) + "…"
	}
	return text
}
