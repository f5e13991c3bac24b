// Package journal reports what happens on this machine: to the processes of Dormouse,
// to servers, and to calls. It counts the running processes.
package journal

import (
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"
)

// Kinds of [Event]. A wake means that a process was started. Each process has exactly one
// wake and exactly one end (sleep or crash). Test support has processes of other kinds.
const (
	BoxWake  = "box.wake"  // the runner of a box was started
	BoxSleep = "box.sleep" // it ended by itself or was asked to; Duration: its life
	BoxCrash = "box.crash" // it ended in another way; Detail: how; Duration: its life

	ServersChanged = "servers.changed" // the changed servers file is served; Name: the file; Detail: how it differs
	ServersRefused = "servers.refused" // it cannot be served, and nothing has changed; Detail: why

	// ProcessCount says that the last process has ended. The Recorder creates it.
	ProcessCount = "process.count"

	ServerSaved      = "server.saved"      // a file of its sources was saved, so it starts anew
	ServerStarting   = "server.starting"   // a process of a server is being started, for Principal and Client
	ServerInstalling = "server.installing" // Detail: what is being installed for it
	ServerReady      = "server.ready"      // it answers; Duration: since it runs; Install: how long the installs took; Detail: its tools, if they are known
	ServerFailed     = "server.failed"     // it could not be started, or ended on its own; Reason, Phase; Lines: the places in its sources, if they are known
	ServerStopped    = "server.stopped"    // it was stopped because it was idle or not wanted any more
	ServerRefused    = "server.refused"    // its network refused a place that its list of hosts has not; Detail
	ServerAsleep     = "server.asleep"     // a box of the server has ended; Duration: since its last work, if that is known

	ToolsHeld = "tools.held" // tools of a server are held back; Detail: how many; Lines: how they differ from what was accepted

	Call    = "call"    // a tool was called; Duration; with a Reason, it failed, or was refused if there is a Refusal
	Refused = "refused" // a request that calls no tool was refused; Reason
	// RefusedAgain is Refused for a Reason and a caller of which the last minute has had a
	// Refused, or one of too many. It is for counting.
	RefusedAgain = "refused.again"

	LogLost           = "log.lost"           // the log of this machine cannot be written; Reason
	FolderTrouble     = "folder.trouble"     // a file of the data folder is damaged, lost or cannot be used; Reason
	FolderWell        = "folder.well"        // the store can be written again; Detail
	CertificateFailed = "certificate.failed" // the endpoint has no certificate, or no new one; Reason

	Request = "request" // a request that calls no tool has ended; Duration, Code; only for Trace of [Options], as the next two
	Deliver = "deliver" // a request has reached a box
	Stored  = "stored"  // a frame with messages of a request was stored; Duration

	Frame = "frame" // a function handled a frame of a box; Detail: its type. Only if [Lines] is verbose
)

// Event is one thing that happened on this machine. Fields that the kind does not name may
// be empty.
type Event struct {
	Time     time.Time     // when; set by the recorder if zero
	Kind     string        // one of the constants above
	Name     string        // of the function or the server
	PID      int           // of the process; the recorder does not count an event without one
	Detail   string        // one line for people, may be empty
	Duration time.Duration // as the kind says; 0 where it says nothing
	Running  int           // processes running now in all; set by the recorder

	FileChange          // for ServersChanged
	Lines      []string // for ToolsHeld and ServerFailed

	Tenant    string // of a call
	Principal string // for whom
	Client    string // the name that the client gave itself
	Tool      string // of a call
	Session   string
	Process   string // the process of a server, by its session; or by the name of the sessions that share it
	Trace     string
	Phase     string // the step at which a start failed, see box.Phase
	Code      string // of a failed call, if Dormouse refused it or gave it up; see storage.Code
	Reason    string // why it failed, one line; "" if it did not fail
	Hint      string // what to do about it, or to type; may be empty
	Measured
}

// Measured has the fields of an [Event] that only programs read.
type Measured struct {
	Install  time.Duration // ServerReady
	Method   string        // of a request or a call
	Parent   string        // the traceparent that its client sent, "" for none
	Protocol string        // the protocol version in its header, "" for none
	Wakes    int           // how many boxes it has woken
	Unlisted bool          // the server has a list of tools, without Tool
	Sender
	In, Out int // bytes of its body and of the answer; 0 is unknown
}

// Sender has the fields of an [Event] about a call or a refusal that say where it came from.
type Sender struct {
	Key     string // ID of the API key; a refused caller without a Principal only claims it
	Address string // of the network, such as 192.0.2.7
	Refusal string // why the caller was refused: a code such as forbidden, or the kind of a limit
}

// Failed reports whether e is about a failure, and not about a refusal.
func (e Event) Failed() bool { return e.Reason != "" && e.Refusal == "" }

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
		switch _, what, _ := strings.Cut(e.Kind, "."); what {
		case "wake":
			r.running[e.PID] = true
		case "sleep", "crash":
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

type jsonLine struct {
	Time       time.Time `json:"time"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name,omitempty"`
	PID        int       `json:"pid,omitempty"`
	Detail     string    `json:"detail,omitempty"`
	DurationMS float64   `json:"duration_ms,omitempty"`
	InstallMS  float64   `json:"install_ms,omitempty"`
	Tenant     string    `json:"tenant,omitempty"`
	Principal  string    `json:"principal,omitempty"`
	Client     string    `json:"client,omitempty"`
	Tool       string    `json:"tool,omitempty"`
	Session    string    `json:"session,omitempty"`
	Process    string    `json:"process,omitempty"`
	Trace      string    `json:"trace,omitempty"`
	failure
	Lines []string `json:"lines,omitempty"`
	FileChange
	Running int `json:"running"`
}

// failure has the members that only the JSON line of a failed event has.
type failure struct {
	Phase   string `json:"phase,omitempty"`
	Failed  bool   `json:"failed,omitempty"`
	Refusal string `json:"refusal,omitempty"`
	Code    string `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Hint    string `json:"hint,omitempty"`
	Key     string `json:"key,omitempty"`
	Address string `json:"address,omitempty"`
}

// FileChange has the names of the servers that differ in a changed servers file.
type FileChange struct {
	Added   []string `json:"added,omitempty"`
	Changed []string `json:"changed,omitempty"`
	Removed []string `json:"removed,omitempty"`
}

// JSONPrinter returns a printer of one JSON object a line. The times are RFC 3339, UTC,
// and durations are in milliseconds. It leaves out empty values, except running. failed
// is true where there is a reason and no refusal. It prints no [RefusedAgain].
func JSONPrinter(w io.Writer) func(Event) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return func(e Event) {
		if e.Kind == RefusedAgain {
			return
		}
		// A jsonLine always encodes. If the output cannot be written to, there is no
		// better place to report that.
		_ = enc.Encode(jsonLine{
			Time: e.Time.UTC(), Kind: e.Kind, Name: e.Name, PID: e.PID, Detail: e.Detail,
			DurationMS: ms(e.Duration), InstallMS: ms(e.Install), Tenant: e.Tenant, Principal: e.Principal, Client: e.Client, Tool: e.Tool,
			Session: e.Session, Process: e.Process, Trace: e.Trace, failure: failure{e.Phase, e.Failed(), e.Refusal, e.Code, e.Reason, e.Hint, e.Key, e.Address},
			Lines: e.Lines, Running: e.Running, FileChange: e.FileChange,
		})
	}
}
