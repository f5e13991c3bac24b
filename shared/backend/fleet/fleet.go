// Package fleet defines how to run boxes, which hold the processes of servers, in some place, such
// as this machine or ECS: start one, stop one, list the live ones. A driver knows one place, and
// nothing of sessions, generations or the relay.
//
// If a place lists tasks, the list shows whether a box that no longer answers still runs. In other
// places [Traits] say how long a task can live.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Inside is the name of a place whose tasks run in the program that starts them, and end with it.
const Inside = "inside"

// Remembered is how long a fleet still lists a task after it stopped. For that time, Run with the
// client token of a stopped task starts nothing and returns the id of the stopped task.
const Remembered = 15 * time.Minute

// MaxClientToken is the longest client token that every driver accepts, in bytes.
const MaxClientToken = 64

var (
	// ErrCapacity means that the fleet already runs as many tasks as it may. Run has started
	// nothing.
	ErrCapacity = errors.New("fleet: no room for another task")
	// ErrInvalid means that the task as given can never be started.
	ErrInvalid = errors.New("fleet: the task cannot be run as given")
	// ErrUnavailable means that the fleet did not answer or is shutting down. A Run may
	// or may not have started the task: repeat it with the same token.
	ErrUnavailable = errors.New("fleet: not available")
	// ErrUnlisted means that the place does not list its tasks, and never will. The error
	// says nothing about any task.
	ErrUnlisted = errors.New("fleet: the place does not list its tasks")
)

// Refusal is the error of a place that does not start a task. Callers of the task's server may see
// the reason, Why. Nothing was started, and a second attempt at once would not help.
type Refusal struct{ Why string }

// Error returns Why.
func (r Refusal) Error() string { return r.Why }

// Traits say what a place, such as ECS or Lambda, can do besides starting tasks.
type Traits struct {
	// Lifetime is the longest life of a task; 0 for no limit.
	Lifetime time.Duration
	// Lists reports whether Tasks lists the tasks and Stop ends them. If Lists is false,
	// Tasks fails with [ErrUnlisted], Stop does nothing, a task ends by itself, and Run may
	// start two tasks for one token, at once or later.
	Lists bool
	// Invites reports whether a task starts with only those variables that its runner needs to
	// connect to the relay. The relay sends the other variables when the runner has connected.
	Invites bool
	// Idle is how long a box with nothing to do should stay awake, if the settings of its server do
	// not say; 0 leaves that to the caller.
	Idle time.Duration
	// StartTimeout is how long a task may take from Run until its runner has connected to the
	// relay; 0 leaves that to the caller.
	StartTimeout time.Duration
	// Since is when the program that runs the tasks was started, if the tasks end with it, as
	// on one machine. A task that was started before Since and is not listed is dead. Since
	// is zero for other places.
	Since time.Time
}

// PlaceOf returns the place in the id of a task, PLACE/REST. It returns "" for an id
// without one, as earlier versions made.
func PlaceOf(id string) string {
	place, _, ok := strings.Cut(id, "/")
	if !ok {
		return ""
	}
	return place
}

// Same reports whether two ids name the same task. An id of an earlier version has no
// place, and equals what follows the place in an id of today.
func Same(a, b string) bool {
	if a == b {
		return true
	}
	_, restA, placedA := strings.Cut(a, "/")
	_, restB, placedB := strings.Cut(b, "/")
	return a != "" && b != "" && (placedA && !placedB && restA == b || placedB && !placedA && restB == a)
}

// Fleet starts and stops boxes. It is safe for concurrent use. Test its errors with
// errors.Is against the Err values of this package.
type Fleet interface {
	// Run starts a task and returns its id. Run does not wait for the box to connect. Run is
	// idempotent by t.ClientToken: all calls with one token return one id and start one task,
	// even concurrent calls, and calls until [Remembered] after the task has stopped. A
	// repeated Run ignores the other fields of t. A place that does not list its tasks may
	// start several tasks for one token.
	Run(ctx context.Context, t Task) (id string, err error)

	// Stop asks a task to end and returns when the request is accepted. The task may run
	// on for some seconds to save its state. [Status.Reason] keeps reason. Stop returns
	// no error for an unknown id, for a task that has ended, and in a place that cannot
	// stop tasks.
	Stop(ctx context.Context, id, reason string) error

	// Tasks lists the tasks that are pending or running and those that stopped within [Remembered],
	// oldest first. A task that is not in the list is dead, if its place lists tasks. Tasks fails
	// with [ErrUnlisted] if no place of the fleet lists tasks.
	Tasks(ctx context.Context) ([]Status, error)

	// Traits returns what a place can do. The argument has the form of [Task].Place; a fleet
	// with one place ignores it.
	Traits(place string) Traits
}

// Task is a task to run: one runner for one box.
type Task struct {
	// ClientToken makes Run idempotent. 1 to [MaxClientToken] bytes, required.
	ClientToken string `json:"clientToken"`
	// Box is the box of the task, and Server the configured server in it. A fleet does not
	// act on them.
	Box    string `json:"box"`
	Server string `json:"server"`
	// Place is where to run the task, for a fleet with several places.
	Place string `json:"place,omitempty"`
	// Env is the runner's environment (where the relay is, its one-time token ...). It
	// may hold secrets: drivers never log it and never return it.
	Env map[string]string `json:"env,omitempty"`
}

// Check returns nil for a task whose client token and environment every place takes.
// Errors: [ErrInvalid].
func (t Task) Check() error {
	if t.ClientToken == "" || len(t.ClientToken) > MaxClientToken {
		return fmt.Errorf("%w: the client token has %d bytes, it must have 1 to %d", ErrInvalid, len(t.ClientToken), MaxClientToken)
	}
	for name, value := range t.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("%w: environment variable %q has a name or a value that cannot be passed to a process: it is empty, or has a NUL character or = in it", ErrInvalid, name)
		}
	}
	return nil
}

// State is the stage of a task's life.
type State string

const (
	// Pending: accepted, not yet running.
	Pending State = "pending"
	// Running: the runner has been started.
	Running State = "running"
	// Stopped: nothing of the task runs any more.
	Stopped State = "stopped"
)

// Status is what a fleet knows of one task.
type Status struct {
	// ID is PLACE/REST, see [PlaceOf].
	ID string `json:"id"`
	// ClientToken is the token of the Run that started this task.
	ClientToken string `json:"clientToken"`
	Box         string `json:"box"`
	Server      string `json:"server"`
	State       State  `json:"state"`
	// PID is the runner's process id if the task is a process of this machine, else 0.
	PID int `json:"pid,omitempty"`
	// Started is when the runner was started, and Stopped when the last process of the
	// task was gone; zero before that.
	Started time.Time `json:"started,omitzero"`
	Stopped time.Time `json:"stopped,omitzero"`
	// ExitCode is the runner's exit status; -1 if a signal or the fleet ended it, 0 before it
	// stopped. Signal is the name of the signal ("SIGKILL"), or "".
	ExitCode int    `json:"exitCode"`
	Signal   string `json:"signal,omitempty"`
	// Reason says in words why the task stopped: the reason given to Stop, or what the fleet
	// has observed.
	Reason string `json:"reason,omitempty"`
}

// Invitation is the request that starts a task in a place with [Traits].Invites. It holds
// no secret of a server: Env has only what the runner needs for its hello.
type Invitation struct {
	Task        string            `json:"task"` // the id of the task
	ClientToken string            `json:"clientToken"`
	Box         string            `json:"box"`
	Server      string            `json:"server"`
	Env         map[string]string `json:"env"`
}

// maxInvitation limits the bytes of an invitation to what all places accept.
const maxInvitation = 1 << 20

// Invite returns the id of a task in a place with [Traits].Invites, and its invitation as
// JSON.
//
// Errors: [ErrInvalid] for a task that could never run there.
func (t Task) Invite(place string) (id string, invitation []byte, err error) {
	if err := t.Check(); err != nil {
		return "", nil, err
	}
	id = place + "/" + t.ClientToken
	invitation, err = json.Marshal(Invitation{Task: id, ClientToken: t.ClientToken, Box: t.Box, Server: t.Server, Env: t.Env})
	if err != nil || len(invitation) > maxInvitation {
		return "", nil, fmt.Errorf("%w: the invitation of the box has %d bytes, at most %d are sent: %w", ErrInvalid, len(invitation), maxInvitation, err)
	}
	return id, invitation, nil
}

// End returns the status with which the task reports its own end. The caller adds the
// times, the exit code and the reason.
func (i Invitation) End() Status {
	return Status{ID: i.Task, ClientToken: i.ClientToken, Box: i.Box, Server: i.Server, State: Stopped}
}
