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

// Kinds of [Event], with the fields that each of them sets. A wake means that a process was
// started. Each process has exactly one wake and exactly one end (sleep or crash). Test support
// has processes of other kinds.
const (
	BoxWake  = "box.wake"  // the runner of a box was started
	BoxSleep = "box.sleep" // the runner ended by itself, or because it was asked to; Duration: how long it ran
	BoxCrash = "box.crash" // the runner ended in another way; Detail: how; Duration: how long it ran

	ServersChanged = "servers.changed" // the servers file was changed and is served; Name: the file; Detail: how it differs
	ServersRefused = "servers.refused" // the servers file was changed and cannot be served, so what was served before still is; Detail: why

	// ProcessCount says that the last process has ended. The Recorder creates it.
	ProcessCount = "process.count"

	ServerSaved      = "server.saved"      // a file of a server's sources was saved, so the server starts anew
	ServerStarting   = "server.starting"   // a process of a server is being started, for Principal and Client
	ServerInstalling = "server.installing" // Detail: what is being installed for the process
	ServerReady      = "server.ready"      // the process answers; Duration: since it runs; Install: how long the installs took; Detail: the server's tools, if they are known
	ServerFailed     = "server.failed"     // the process could not be started, or ended on its own; Reason, Phase; Lines: the places in the server's sources, if they are known
	ServerStopped    = "server.stopped"    // Dormouse stopped the process, which was idle or not wanted any more
	ServerRefused    = "server.refused"    // the sandbox refused the process a host that the server's list of hosts has not; Detail
	ServerAsleep     = "server.asleep"     // a box of the server has ended; Duration: since the server's last work, if that is known

	ToolsHeld = "tools.held" // tools of a server are held back; Detail: how many; Lines: how they differ from what was accepted

	Call    = "call"    // a tool was called; Duration; with a Reason, the call failed, or was refused if there is a Refusal
	Refused = "refused" // a request that calls no tool was refused; Reason
	// RefusedAgain is a refusal for the reason and the caller of a Refused in the last minute,
	// or one of too many refusals. Printers count it and do not show it.
	RefusedAgain = "refused.again"

	LogLost           = "log.lost"           // the log of this machine cannot be written; Reason
	FolderTrouble     = "folder.trouble"     // a file of the data folder is damaged, lost or cannot be used; Reason
	FolderWell        = "folder.well"        // the store can be written again; Detail
	CertificateFailed = "certificate.failed" // the endpoint has no certificate, or no new one; Reason

	// Request says that a request that calls no tool has ended; Duration, Code. Only
	// [Options].Trace gets events of this kind and of the next two.
	Request = "request"
	Deliver = "deliver" // a request has reached a box
	Stored  = "stored"  // a frame with messages of a request was stored; Duration

	Frame = "frame" // a function handled a frame of a box; Detail: its type. Only if [Options].Verbose is set
)

// Event is one thing that happened on this machine. Fields that the kind does not name may
// be empty. [JSONPrinter] prints the fields with a name in JSON.
type Event struct {
	Time     time.Time     `json:"time"`             // when; set by the recorder if zero
	Kind     string        `json:"kind"`             // one of the constants above
	Name     string        `json:"name,omitempty"`   // of the function or the server
	PID      int           `json:"pid,omitempty"`    // of the process; the recorder does not count an event without one
	Detail   string        `json:"detail,omitempty"` // one line for people
	Duration time.Duration `json:"-"`                // as the kind says; 0 where the kind names none

	Tenant    string `json:"tenant,omitempty"`
	Principal string `json:"principal,omitempty"` // for whom
	Client    string `json:"client,omitempty"`    // the name that the client gave itself
	Tool      string `json:"tool,omitempty"`      // of a call
	Session   string `json:"session,omitempty"`
	Process   string `json:"process,omitempty"` // the process of a server: its session, or the name of the sessions that share it
	Trace     string `json:"trace,omitempty"`
	Phase     string `json:"phase,omitempty"`  // the step at which a start failed, see box.Phase
	Code      string `json:"code,omitempty"`   // of a failed call, if Dormouse refused it or gave it up; see storage.Code
	Reason    string `json:"reason,omitempty"` // why it failed or was refused, one line; "" if it was neither
	Hint      string `json:"hint,omitempty"`   // what to do about it, or to type
	Measured

	FileChange          // for ServersChanged
	Lines      []string `json:"lines,omitempty"` // for ToolsHeld and ServerFailed
	Running    int      `json:"running"`         // processes running now in all; set by the recorder
}

// Measured has the fields of an [Event] that only programs read.
type Measured struct {
	Install  time.Duration `json:"-"` // ServerReady
	Method   string        `json:"-"` // of a request or a call
	Parent   string        `json:"-"` // the traceparent that the client sent, "" for none
	Protocol string        `json:"-"` // the protocol version in the request's header, "" for none
	Wakes    int           `json:"-"` // how many boxes the request has woken
	Unlisted bool          `json:"-"` // the server has a list of tools, and Tool is not in the list
	Sender
	In, Out int `json:"-"` // bytes of the request's body and of the answer; 0 is unknown
}

// Sender has the fields of an [Event] about a call or a refusal that say where it came from.
type Sender struct {
	Key     string `json:"key,omitempty"`     // ID of the API key; a refused caller without a Principal only claims it
	Address string `json:"address,omitempty"` // of the network, such as 192.0.2.7
	Refusal string `json:"refusal,omitempty"` // why the caller was refused: a code such as forbidden, or the kind of a limit
}

// FileChange has the names of the servers that differ in a changed servers file.
type FileChange struct {
	Added   []string `json:"added,omitempty"`
	Changed []string `json:"changed,omitempty"`
	Removed []string `json:"removed,omitempty"`
}

// Failed reports whether e is about a failure, and not about a refusal.
func (e Event) Failed() bool { return e.Reason != "" && e.Refusal == "" }

// Recorder counts the running processes and passes events to its printers. It is safe for
// concurrent use.
type Recorder struct {
	mu       sync.Mutex
	running  map[int]bool // by process id
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
		e.Time = e.Time.UTC()
		// An Event always encodes. If the output cannot be written to, there is no better
		// place to report that.
		_ = enc.Encode(struct {
			Event
			DurationMS float64 `json:"duration_ms,omitempty"`
			InstallMS  float64 `json:"install_ms,omitempty"`
			Failed     bool    `json:"failed,omitempty"`
		}{e, ms(e.Duration), ms(e.Install), e.Failed()})
	}
}
