package journal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Lines makes events of the log lines of functions and runners, which is how the programs
// of this machine say what happens in them. Lines of functions go through Record, those of
// runners through Box. It is safe for concurrent use.
type Lines struct {
	to *Recorder
	Options

	mu      sync.Mutex
	callers map[string]caller    // by session
	starts  map[string]*start    // by server and process
	open    map[string]Event     // calls whose end comes in a later line, by stream
	work    map[string]time.Time // the last work, by server
	refused map[string]time.Time // when a request was refused last, by caller and reason
}

// caller identifies the client of a session.
type caller struct{ tenant, principal, client string }

// start is a process that is not ready.
type start struct {
	installs time.Time     // since when; zero if it installs nothing
	install  time.Duration // how long the installs took
}

// maxKnown limits the sessions, starts and calls that Lines remembers. Events about
// forgotten ones have fewer fields.
const maxKnown = 10_000

// Options of Lines. All of them may be left out.
type Options struct {
	Verbose bool                               // with events of kind Frame
	Hide    func(string) string                // removes the secrets of servers from a text
	Tools   func(tenant, server string) string // such as "3 tools"; "" if that is not known
	// Lists reports whether a tool may be counted by its name: a list of the server has the
	// tool, or no list is known.
	Lists func(tenant, server, tool string) bool
	Trace func(Event) // gets events of kinds Request, Deliver and Stored; must not block
}

// NewLines returns a Lines that passes events to a recorder.
func NewLines(to *Recorder, o Options) *Lines {
	if o.Hide == nil {
		o.Hide = func(s string) string { return s }
	}
	if o.Tools == nil {
		o.Tools = func(string, string) string { return "" }
	}
	if o.Lists == nil {
		o.Lists = func(string, string, string) bool { return true }
	}
	return &Lines{
		to: to, Options: o,
		callers: map[string]caller{}, starts: map[string]*start{}, open: map[string]Event{}, work: map[string]time.Time{}, refused: map[string]time.Time{},
	}
}

// said holds the attributes of a log line of a function.
type said struct {
	Time      time.Time
	Server    string
	Session   string
	Principal string
	Client    string
	Trace     string
	Why       string
	Hint      string
	MS        int64
	Type      string   // of a frame
	Ended     []Ended  // in a frame
	Traces    []string // of the requests in a frame

	Tool    string
	Tenant  string
	Code    string
	Stream  string
	Outcome string
	Refused bool   // a request that calls no tool
	Refusal string // why its caller was refused; "" for another reason
	Caller  sender

	Method   string
	Parent   string
	Protocol string
	Wakes    int
	In, Out  int
}

// sender is where a call or a refused request came from. It names the server and the caller
// only of a request that was refused before these were known.
type sender struct{ Server, Tenant, Principal, Key, Address string }

// take reads the attributes of a sender.
func (s *sender) take(attrs []slog.Attr) {
	for _, a := range attrs {
		text := a.Value.String()
		switch a.Key {
		case "server":
			s.Server = text
		case "tenant":
			s.Tenant = text
		case "principal":
			s.Principal = text
		case "key":
			s.Key = text
		case "address":
			s.Address = text
		}
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
}

// Ended is the end of a call that no function waits for, in the log line of the function
// that stored it.
type Ended struct {
	Stream string `json:"stream"`
	Why    string `json:"why,omitempty"` // why it failed
}

// Box takes a log line of the runner of a box. tenant and server are the box's; they may be
// "" if the line names its server and its session.
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

// Record takes a log line of a function. It returns the line without the
// secrets in the reason of a failure.
func (l *Lines) Record(r slog.Record) slog.Record {
	switch r.Message {
	case "request", "socket", "api", "frame", "work":
		s := said{Time: r.Time}
		r.Attrs(s.take)
		l.function(r.Message, &s)
		if s.Why != "" {
			r = l.hidden(r)
		}
	}
	return r
}

// hidden returns a copy of a record without the secrets in its reason.
func (l *Lines) hidden(r slog.Record) slog.Record {
	copied := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "why" {
			a = slog.String(a.Key, l.Hide(a.Value.String()))
		}
		copied.AddAttrs(a)
		return true
	})
	return copied
}

// take reads one attribute of a line.
func (s *said) take(a slog.Attr) bool {
	switch a.Key {
	case "server":
		s.Server = a.Value.String()
	case "session_id":
		s.Session = a.Value.String()
	case "principal":
		s.Principal = a.Value.String()
	case "client":
		s.Client = a.Value.String()
	case "tenant":
		s.Tenant = a.Value.String()
	case "code":
		s.Code = a.Value.String()
	case "tool":
		s.Tool = a.Value.String()
	case "stream":
		s.Stream = a.Value.String()
	case "outcome":
		s.Outcome = a.Value.String()
	case "why":
		s.Why = a.Value.String()
	case "hint":
		s.Hint = a.Value.String()
	case "refusal":
		s.Refusal = a.Value.String()
	case "caller":
		if a.Value.Kind() == slog.KindGroup {
			s.Caller.take(a.Value.Group())
		}
	case "refused":
		s.Refused = a.Value.Kind() == slog.KindBool && a.Value.Bool()
	case "trace":
		s.Trace = a.Value.String()
	case "type":
		s.Type = a.Value.String()
	case "traces":
		s.Traces, _ = a.Value.Any().([]string)
	case "rpc_method":
		s.Method = a.Value.String()
	case "traceparent":
		s.Parent = a.Value.String()
	case "protocol":
		s.Protocol = a.Value.String()
	case "wakes":
		s.Wakes = intOf(a.Value)
	case "bytes_in":
		s.In = intOf(a.Value)
	case "bytes_out":
		s.Out = intOf(a.Value)
	case "duration_ms":
		if a.Value.Kind() == slog.KindInt64 {
			s.MS = a.Value.Int64()
		}
	case "ended":
		s.Ended = endsOf(a.Value.Any())
	}
	return true
}

func intOf(v slog.Value) int {
	if v.Kind() == slog.KindInt64 {
		return int(v.Int64())
	}
	return 0
}

// endsOf reads the ends of calls in a line of this process. The journal does not know
// their type, so it reads them as JSON.
func endsOf(v any) (all []Ended) {
	text, err := json.Marshal(v)
	if err != nil || json.Unmarshal(text, &all) != nil {
		return nil
	}
	return all
}

// function takes what a function has said.
func (l *Lines) function(msg string, s *said) {
	switch msg {
	case "api":
		if s.Refused {
			l.refuse(s)
		}
	case "request", "socket":
		l.request(s)
		if l.Trace != nil && s.Method != "" && s.Tool == "" {
			l.Trace(s.event(Request))
		}
	case "work":
		l.knows(s)
	case "frame":
		for _, e := range s.Ended {
			l.ended(e)
		}
		if l.Trace != nil {
			for _, trace := range s.Traces {
				l.Trace(Event{Time: s.Time, Kind: Stored, Name: s.Server, Session: s.Session, Trace: trace, Duration: s.took()})
			}
		}
		if l.Verbose {
			l.to.Record(Event{Kind: Frame, Name: s.Server, Detail: s.Type, Session: s.Session, Duration: s.took()})
		}
	}
}

func (s *said) took() time.Duration { return time.Duration(s.MS) * time.Millisecond }

// The outcomes of a call in the log line of a request.
const (
	outcomeDone    = "done"
	outcomeFailed  = "failed"
	outcomeRefused = "refused"
	outcomeOpen    = "open" // no function waits for its end
)

// noWords is the reason of a failed call whose line gives none.
const noWords = "the tool reported an error"

// request takes the line of a client's request.
func (l *Lines) request(s *said) {
	l.knows(s)
	if s.Refused {
		l.refuse(s)
		return
	}
	reason := l.reason(s.Server, s.Why)
	switch {
	case s.Outcome == "":
		return
	case s.Tool == "": // the end of a call that an earlier request began
		if s.Outcome == outcomeFailed {
			s.Why = cmp.Or(s.Why, noWords)
		}
		l.ended(Ended{s.Stream, s.Why})
		return
	}
	e := s.event(Call)
	e.Unlisted = !l.Lists(s.Tenant, s.Server, s.Tool)
	switch s.Outcome {
	case outcomeFailed, outcomeRefused:
		e.Reason = cmp.Or(reason, noWords)
	case outcomeOpen:
		e.Time = time.Now().Add(-e.Duration)
		l.later(s.Stream, e)
		return
	}
	l.to.Record(e)
}

// refuse takes the line of a request that calls no tool and was refused.
func (l *Lines) refuse(s *said) {
	e := Event{
		Kind: Refused, Name: cmp.Or(s.Server, plain(s.Caller.Server)), Tenant: cmp.Or(s.Tenant, s.Caller.Tenant),
		Principal: cmp.Or(s.Principal, s.Caller.Principal), Code: s.Code, Trace: s.Trace, Hint: s.Hint, Measured: Measured{Sender: s.sender()},
	}
	e.Reason = l.reason(s.Server, s.Why)
	if l.repeated(e.Principal + "\x00" + e.Key + "\x00" + e.Address + "\x00" + e.Reason) {
		e.Kind = RefusedAgain
	}
	l.to.Record(e)
}

func (s *said) sender() Sender {
	return Sender{Key: plain(s.Caller.Key), Address: plain(s.Caller.Address), Refusal: s.Refusal}
}

// event returns the event of a request.
func (s *said) event(kind string) Event {
	return Event{
		Kind: kind, Name: s.Server, Duration: s.took(), Tenant: s.Tenant, Principal: s.Principal, Client: plain(s.Client), Tool: plain(s.Tool),
		Code: s.Code, Session: s.Session, Trace: s.Trace,
		Measured: Measured{Method: plain(s.Method), Parent: s.Parent, Protocol: plain(s.Protocol), Wakes: s.Wakes, In: s.In, Out: s.Out, Sender: s.sender()},
	}
}

// repeated reports whether a caller was refused for the same reason in the last minute. of
// names both.
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

// maxReasons limits the refusals that are told in a minute.
const maxReasons = 100

// knows remembers the client of a session, and when the session's server last had work.
func (l *Lines) knows(s *said) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Server != "" && s.Principal != "" {
		l.work[s.Server] = time.Now()
	}
	if s.Session == "" || s.Principal == "" {
		return
	}
	if len(l.callers) >= maxKnown {
		clear(l.callers)
	}
	known := l.callers[s.Session]
	l.callers[s.Session] = caller{cmp.Or(s.Tenant, known.tenant), s.Principal, cmp.Or(plain(s.Client), known.client)}
}

// process takes the state that a server's process has reached; the states are those of
// box.ProcessState. tools is as [Options].Tools, for a server that is ready.
func (l *Lines) process(s *boxLine, tools string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := s.Server + "\x00" + s.Process
	from := l.callers[s.Session]
	e := Event{
		Name: s.Server, PID: s.PID, Session: s.Session, Process: s.Process, Tenant: from.tenant,
		Principal: from.principal, Client: cmp.Or(plain(s.Client), from.client),
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

// endInstall ends the time of an install.
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

// reason returns the first line of a text without secrets, and without the name of the
// server that it is about, which the event has.
func (l *Lines) reason(server, text string) string {
	if text == "" {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return plain(l.Hide(strings.TrimPrefix(first, fmt.Sprintf("server %q: ", server))))
}

// plain returns a text that cannot control a terminal.
func plain(text string) string {
	if len(text) > 4*maxReason {
		text = text[:4*maxReason]
	}
	ok := func(r rune) bool { return unicode.IsPrint(r) }
	if strings.ContainsFunc(text, func(r rune) bool { return !ok(r) }) {
		text = strings.Map(func(r rune) rune {
			if ok(r) {
				return r
			}
			return ' '
		}, text)
	}
	if runes := []rune(text); len(runes) > maxReason {
		text = string(runes[:maxReason-1]) + "…"
	}
	return text
}
