package box

import "time"

// state says how far a process has come. It never goes back.
type state int

const (
	starting state = iota // the process waits for its turn, or the provisioner prepares it
	greeting              // the process runs, and has not answered the first message
	ready                 // the handshake is over: the process takes messages
	stopping              // the process is ending, or was told to end
	gone                  // the requests of the process have ended; the box ignores its output
)

// ProcessState says how far a process has come, in a [ProcessStatus].
type ProcessState string

// The states. The sink gets Staging once for each step of the preparation, then Started, Ready,
// and at last Stopped or Exited. A process that cannot be started skips Started and Ready.
const (
	Staging ProcessState = "staging" // the provisioner prepares the process; Detail says how far it is
	Started ProcessState = "started" // the process runs and has yet to answer initialize
	Ready   ProcessState = "ready"   // the handshake is over
	Stopped ProcessState = "stopped" // the process was idle, or its session or the box has ended
	Exited  ProcessState = "exited"  // the process failed
)

// ProcessStatus reports the state of a process. No value in it holds a secret of the
// server's environment.
type ProcessStatus struct {
	Process string // the name of the process, which [Scope.Name] returns for its sessions
	Session string // the session of the process; if several share it, the one that was active last
	State   ProcessState
	Phase   Phase  // the step at which it failed, "" if it did not
	Detail  string // why it failed, what is being prepared, what its network has refused, or whether its memory was kept or lost
	PID     int    // 0 if the process never ran
	Since   time.Time
	Took    time.Duration // how long the process took to be ready; set once, with the state Ready

	ExitCode *int   // nil while the process runs, and when Signal is set
	Signal   string // such as SIGKILL
	Stderr   string // the end of stderr, up to 4,000 characters; set after the process has ended
	Stdout   string // the end of the stdout lines that were no messages; set after the process has ended
	// NoiseLines counts the lines of stdout that were no messages.
	NoiseLines int64
}
