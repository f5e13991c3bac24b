// Package fleet says what it takes to run boxes somewhere: start one, stop one,
// tell which are alive. A driver knows one place (package process: this machine)
// and nothing of sessions, generations or the relay; who is woken when is decided
// above it. The words are those of no particular cloud, so that another place can
// be added without touching a caller.
//
// A fleet is the only authority on "this task is dead": a box that is silent may
// be slow, cut off or busy, and only the fleet that started it can say that
// nothing of it runs any more.
package fleet

import (
	"context"
	"errors"
	"time"
)

// Remembered is how long a fleet keeps telling about a task after it stopped.
// Within it a client token still names its old task: Run with that token starts
// nothing and answers the id of the stopped task.
const Remembered = 15 * time.Minute

// MaxClientToken is the longest client token every driver takes, in bytes.
const MaxClientToken = 64

var (
	// ErrCapacity means that the fleet runs as many tasks as it may. Nothing was
	// started; try again when one has stopped.
	ErrCapacity = errors.New("fleet: no room for another task")
	// ErrDisabled means that boxes are switched off: there is no use in waiting.
	ErrDisabled = errors.New("fleet: boxes are switched off")
	// ErrInvalid means that the task can never be started as it was given.
	ErrInvalid = errors.New("fleet: the task cannot be run as given")
	// ErrUnavailable means that the fleet did not answer or is shutting down. A
	// Run may or may not have started the task: repeat it with the same token.
	ErrUnavailable = errors.New("fleet: not available")
)

// Fleet starts and stops boxes. It is safe for concurrent use. Its errors are
// told apart with errors.Is against the Err values of this package.
type Fleet interface {
	// Run starts a task and returns its id without waiting until the box has
	// said anything. It is idempotent by t.ClientToken: calls with one token give
	// one id and start one task, also at the same time and also when the task has
	// stopped since (for [Remembered]); what else differs in t is then ignored.
	Run(ctx context.Context, t Task) (id string, err error)

	// Stop asks a task to end and returns when the request is taken; the task may
	// run on for some seconds to put its things away. reason is kept in
	// [Status.Reason]. An unknown id, and a task that has ended, are no error.
	Stop(ctx context.Context, id, reason string) error

	// Tasks lists the tasks that are pending or running and those that stopped
	// within [Remembered], oldest first. A task that is on neither list is dead.
	Tasks(ctx context.Context) ([]Status, error)
}

// Task is what is to be run: one runner for one box.
type Task struct {
	// ClientToken makes Run idempotent. 1 to [MaxClientToken] bytes, required.
	ClientToken string `json:"clientToken"`
	// Box is the box the task is for, Server the configured server it hosts. Both
	// are for people and logs: a fleet does not act on them.
	Box    string `json:"box"`
	Server string `json:"server"`
	// Env is what the runner is told (where the relay is, its one-time token ...).
	// It may hold secrets: drivers never log it and never give it back.
	Env map[string]string `json:"env,omitempty"`
}

// State is where a task is in its life. It only moves forward.
type State string

const (
	// Pending: taken, not yet running.
	Pending State = "pending"
	// Running: the runner has been started. It may not have said hello yet.
	Running State = "running"
	// Stopped: nothing of the task runs any more. Final.
	Stopped State = "stopped"
)

// Status is what a fleet knows about one task.
type Status struct {
	ID string `json:"id"`
	// ClientToken is the Task's: it tells which Run this task came from.
	ClientToken string `json:"clientToken"`
	Box         string `json:"box"`
	Server      string `json:"server"`
	State       State  `json:"state"`
	// PID is the runner's process id where the fleet is this machine, else 0.
	PID int `json:"pid,omitempty"`
	// Started and Stopped are when the runner was started and when the last of
	// the task was gone; zero before that.
	Started time.Time `json:"started,omitzero"`
	Stopped time.Time `json:"stopped,omitzero"`
	// ExitCode is the runner's exit status; -1 when a signal or the fleet ended
	// it, 0 before it stopped. Signal is that signal's name ("SIGKILL"), or "".
	ExitCode int    `json:"exitCode"`
	Signal   string `json:"signal,omitempty"`
	// Reason says in words why the task stopped: what Stop was given, or what the
	// fleet saw.
	Reason string `json:"reason,omitempty"`
}
