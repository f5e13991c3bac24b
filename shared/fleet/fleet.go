// Package fleet defines how to run boxes in some place: start one, stop one, list the
// live ones. A driver knows one place (package process: this machine) and nothing of
// sessions, generations or the relay. Its callers decide which box is woken when. The
// words belong to no particular cloud, so another place needs no change in a caller.
//
// Only a fleet can say that a task is dead. A box that is silent may be slow, cut off or
// busy. The fleet that started it knows whether anything of it still runs.
package fleet

import (
	"context"
	"errors"
	"time"
)

// Remembered is how long a fleet still lists a task after it stopped. Within it a client
// token still names its old task: Run with that token starts nothing and returns the id
// of the stopped task.
const Remembered = 15 * time.Minute

// MaxClientToken is the longest client token that every driver accepts, in bytes.
const MaxClientToken = 64

var (
	// ErrCapacity means that the fleet already runs as many tasks as it may. It has
	// started nothing. Try again when a task has stopped.
	ErrCapacity = errors.New("fleet: no room for another task")
	// ErrDisabled means that boxes are switched off. Trying again does not help.
	ErrDisabled = errors.New("fleet: boxes are switched off")
	// ErrInvalid means that the task as given can never be started.
	ErrInvalid = errors.New("fleet: the task cannot be run as given")
	// ErrUnavailable means that the fleet did not answer or is shutting down. A Run may
	// or may not have started the task: repeat it with the same token.
	ErrUnavailable = errors.New("fleet: not available")
)

// Fleet starts and stops boxes. It is safe for concurrent use. Test its errors with
// errors.Is against the Err values of this package.
type Fleet interface {
	// Run starts a task and returns its id. It does not wait for the box to connect. It
	// is idempotent by t.ClientToken: all calls with one token return one id and start
	// one task, also concurrent calls, and also for [Remembered] after the task has
	// stopped. Other differences in t are then ignored.
	Run(ctx context.Context, t Task) (id string, err error)

	// Stop asks a task to end and returns when the request is accepted. The task may run
	// on for some seconds to save its state. [Status.Reason] keeps reason. An unknown
	// id, and a task that has ended, are no error.
	Stop(ctx context.Context, id, reason string) error

	// Tasks lists the tasks that are pending or running and those that stopped within
	// [Remembered], oldest first. A task that is not in the list is dead.
	Tasks(ctx context.Context) ([]Status, error)
}

// Task is a task to run: one runner for one box.
type Task struct {
	// ClientToken makes Run idempotent. 1 to [MaxClientToken] bytes, required.
	ClientToken string `json:"clientToken"`
	// Box is the box of the task, and Server the configured server in it. Both are for
	// people and logs: a fleet does not act on them.
	Box    string `json:"box"`
	Server string `json:"server"`
	// Env is the runner's environment (where the relay is, its one-time token ...). It
	// may hold secrets: drivers never log it and never return it.
	Env map[string]string `json:"env,omitempty"`
}

// State is the step of its life that a task has reached. It only moves forward.
type State string

const (
	// Pending: accepted, not yet running.
	Pending State = "pending"
	// Running: the runner has been started. It may not have said hello yet.
	Running State = "running"
	// Stopped: nothing of the task runs any more. This state is final.
	Stopped State = "stopped"
)

// Status describes one task.
type Status struct {
	ID string `json:"id"`
	// ClientToken is the token of the Run that started this task.
	ClientToken string `json:"clientToken"`
	Box         string `json:"box"`
	Server      string `json:"server"`
	State       State  `json:"state"`
	// PID is the runner's process id if the fleet is this machine, else 0.
	PID int `json:"pid,omitempty"`
	// Started is when the runner was started, and Stopped when the last process of the
	// task was gone; zero before that.
	Started time.Time `json:"started,omitzero"`
	Stopped time.Time `json:"stopped,omitzero"`
	// ExitCode is the runner's exit status; -1 if a signal or the fleet ended it, 0
	// before it stopped. Signal is the name of that signal ("SIGKILL"), or "".
	ExitCode int    `json:"exitCode"`
	Signal   string `json:"signal,omitempty"`
	// Reason says in words why the task stopped: the reason given to Stop, or the
	// observation of the fleet.
	Reason string `json:"reason,omitempty"`
}
