// Package journal passes events about this machine to printers: events of dormouse's processes, of
// servers, and of calls.
package journal

import (
	"encoding/json"
	"io"
	"strings"
	"sync"
	"time"
)

// Kinds of [Event], with the fields that are set besides Name and Time. A wake event says that a
// process was started. Each process has exactly one wake, and one end (sleep or crash). The emulator
// of AWS, for tests, has the same three kinds for functions, such as function.wake.
const (
	BoxWake  = "box.wake"  // the runner of a box was started
	BoxSleep = "box.sleep" // the runner ended by itself, or after it was asked to; Duration: how long it ran
	BoxCrash = "box.crash" // the runner ended otherwise; Reason: how; Duration: how long it ran

	ServersChanged = "servers.changed" // a changed servers file is served now; Name: the file; Detail: how it differs
	ServersRefused = "servers.refused" // a changed servers file cannot be served, so the previous one still is; Reason: why

	// ProcessCount says that the last running process has ended. The Recorder creates it.
	ProcessCount = "process.count"

	ServerSaved      = "server.saved"      // a source file of a server was saved, so the server is started anew
	ServerStarting   = "server.starting"   // a process of a server is being started for Principal and Client
	ServerInstalling = "server.installing" // Detail: what is being installed for the process
	ServerReady      = "server.ready"      // the process has answered initialize; Duration: since its start; Install: how long the installs took; Detail: number of tools, if known
	ServerFailed     = "server.failed"     // the process could not be started, or ended on its own; Reason, Phase; Lines: the lines in the server's source files that its output names
	ServerStopped    = "server.stopped"    // Dormouse stopped the process, because it was idle or not needed any more
	ServerRefused    = "server.refused"    // the sandbox refused a network connection to a host that is not allowed for the server; Detail: the host
	ServerAsleep     = "server.asleep"     // a box of the server has ended; Duration: since the last request to the server, if known

	ToolsHeld = "tools.held" // clients do not get some tools of a server until the operator accepts them; Detail: how many; Lines: how they differ from what the operator has accepted

	Call    = "call"    // a call of a tool has ended; Duration; Reason, if it failed or was refused; Refusal, if it was refused
	Refused = "refused" // a request that calls no tool was refused; Reason: why
	// RefusedAgain is a Refused that people need not see: the last minute had one with the same
	// caller and reason, or too many in all. Printers only count it.
	RefusedAgain = "refused.again"

	LogLost           = "log.lost"           // the log cannot be written; Reason: why
	FolderTrouble     = "folder.trouble"     // a file of the data folder is damaged, lost, or cannot be used; Reason: why
	FolderWell        = "folder.well"        // the store can be written again; Detail: a sentence about that
	CertificateFailed = "certificate.failed" // the endpoint has no certificate, or could not renew it; Reason: why

	// Request says that a request that calls no tool has ended; Duration, Code. Events of Request,
	// Deliver and Stored go only to [Options].Trace.
	Request = "request"
	Deliver = "deliver" // a request has reached its box
	Stored  = "stored"  // a message that a box has sent for a request was stored; Duration

	Frame = "frame" // a function has handled a message of a box; Detail: its type. Only if [Options].Verbose is set
)

// Event is something that happened on this machine. Fields that its kind does not name may be
// empty. [JSONPrinter] prints the fields that have a name in JSON.
type Event struct {
	Time     time.Time     `json:"time"`             // time of the event; if zero, the recorder sets it
	Kind     string        `json:"kind"`             // one of the kinds above
	Name     string        `json:"name,omitempty"`   // name of the server or function
	PID      int           `json:"pid,omitempty"`    // id of the process; the recorder counts processes only in events that have one
	Detail   string        `json:"detail,omitempty"` // text for people, one line
	Duration time.Duration `json:"-"`                // meaning depends on the kind

	Tenant    string `json:"tenant,omitempty"`
	Principal string `json:"principal,omitempty"` // who called
	Client    string `json:"client,omitempty"`    // the name that the client sent in initialize
	Tool      string `json:"tool,omitempty"`
	Session   string `json:"session,omitempty"`
	Process   string `json:"process,omitempty"` // the server's process: the id of its session, or if several sessions share it, a name for all of them
	Trace     string `json:"trace,omitempty"`
	Phase     string `json:"phase,omitempty"`  // the step at which a start failed; see box.Phase
	Code      string `json:"code,omitempty"`   // code of a call that Dormouse refused or gave up; see storage.Code
	Reason    string `json:"reason,omitempty"` // why something failed or was refused, in one line
	Hint      string `json:"hint,omitempty"`   // what the user can do, or a command to type
	Measured

	FileChange          // only for ServersChanged
	Lines      []string `json:"lines,omitempty"` // for ToolsHeld and ServerFailed: details, one a line
	Running    int      `json:"running"`         // number of running processes after the event; set by the recorder
}

// Measured has those fields of an [Event] that are for programs and not for people.
type Measured struct {
	Install  time.Duration `json:"-"` // only for ServerReady: how long the installs took
	Method   string        `json:"-"` // MCP method of a request or call
	Parent   string        `json:"-"` // value of the client's traceparent header, or ""
	Protocol string        `json:"-"` // value of the request's header with the protocol version, or ""
	Wakes    int           `json:"-"` // how many boxes the request has woken
	Unlisted bool          `json:"-"` // the server's list of tools is known and lacks Tool
	Sender
	In, Out int `json:"-"` // bytes of the request's body and of the response's body; 0 if unknown
}

// Sender has those fields of an [Event] that say where a call or a refused request came from.
type Sender struct {
	Key     string `json:"key,omitempty"`     // ID of the API key; if the caller was refused and Principal is "", the key was not verified
	Address string `json:"address,omitempty"` // IP address, such as 192.0.2.7
	Refusal string `json:"refusal,omitempty"` // why the caller was refused: a code such as forbidden, or the kind of a limit
}

// FileChange names the servers that differ between the previous servers file and the changed one.
type FileChange struct {
	Added   []string `json:"added,omitempty"`
	Changed []string `json:"changed,omitempty"`
	Removed []string `json:"removed,omitempty"`
}

// Failed reports whether e has a reason and is not a refusal.
func (e Event) Failed() bool { return e.Reason != "" && e.Refusal == "" }

// Recorder counts the running processes and passes events to its printers. It is safe for
// concurrent use.
type Recorder struct {
	mu       sync.Mutex
	running  map[int]bool // by process id
	printers []func(Event)
}

// NewRecorder returns a recorder that calls each printer with each event, in the order of the
// events. A printer must not block, nor call the recorder, directly or indirectly.
func NewRecorder(printers ...func(Event)) *Recorder {
	return &Recorder{running: map[int]bool{}, printers: printers}
}

// Record sets Time and Running in e, and passes e to the printers. When the last running process
// has ended, it also passes an event of kind [ProcessCount].
func (r *Recorder) Record(e Event) {
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

func (r *Recorder) print(e Event) {
	for _, p := range r.printers {
		p(e)
	}
}

// JSONPrinter returns a printer that writes one JSON object a line. Times are RFC 3339 in UTC, and
// durations are in milliseconds. It leaves out empty values, but writes "running" also if it is 0.
// The member "failed" is the result of [Event.Failed]. It leaves out events of kind [RefusedAgain].
func JSONPrinter(w io.Writer) func(Event) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return func(e Event) {
		if e.Kind == RefusedAgain {
			return
		}
		e.Time = e.Time.UTC()
		// There is no better place to report that the output cannot be written.
		_ = enc.Encode(struct {
			Event
			DurationMS float64 `json:"duration_ms,omitempty"`
			InstallMS  float64 `json:"install_ms,omitempty"`
			Failed     bool    `json:"failed,omitempty"`
		}{e, ms(e.Duration), ms(e.Install), e.Failed()})
	}
}
