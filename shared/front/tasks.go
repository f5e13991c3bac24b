package front

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/host"
	"github.com/dormouse-mcp/dormouse/shared/session"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Tasks (extension io.modelcontextprotocol/tasks): a client that declares them in a
// tools/call is not made to hold its response when that takes long. It gets a name
// for the call, and comes back with it. The call goes on as it would have, and
// nothing runs for it but its process. The ladder of their methods goes on with
//
//	tasks not declared            400 -32021  bridge.NeedsTasks
//	no name of a task, or expired 400 -32602  bridge.NoTask
//
// Which calls become tasks is host.TaskMode's to say; then the tool's own
// execution.taskSupport, as far as its client has listed the tools.

// errTask: the call is accepted, and it is time for it to become a task.
var errTask = errors.New("the call becomes a task")

// soon is how long a call may take that is meant to be a task, and still be answered
// at once: with its result, or with what it has to ask before it begins.
const soon = 250 * time.Millisecond

// tasks says that calls of this server may become tasks.
func (x *exchange) tasks() bool {
	return x.opts.Sealer != nil && x.caller.Server.Tasks != host.TasksOff
}

// taskAfter is how long a call may take until it becomes a task; ok is false for one
// that never does.
func (x *exchange) taskAfter(req bridge.Request, notes json.RawMessage) (after time.Duration, ok bool) {
	if req.Method != wire.MethodToolsCall || !req.KnowsTasks() || !x.tasks() {
		return 0, false
	}
	switch support := bridge.NotedTasks(notes, req); {
	case support == bridge.TaskForbidden:
		return 0, false
	case support != "", x.caller.Server.Tasks == host.TasksAlways:
		return min(soon, x.opts.JSONWindow), true
	default:
		return x.opts.JSONWindow, true
	}
}

// lacksTasks says that a call cannot be served because its tool wants to be a task
// only, and the client knows none.
func (x *exchange) lacksTasks(req bridge.Request, notes json.RawMessage) bool {
	return x.tasks() && !req.KnowsTasks() && bridge.NotedTasks(notes, req) == bridge.TaskRequired
}

// become answers a call with the name of the task that it has become. It is accepted,
// so that whoever comes with the name finds it.
func (x *exchange) become(out *reply, req bridge.Request, call *host.Call, server json.RawMessage) {
	ref := bridge.TaskRef{Session: host.PinnedID(x.caller), Stream: call.Stream(), Made: time.Now(), Abilities: req.Abilities()}
	task := x.task(x.opts.Sealer.Seal(ref.Encode()), ref, req)
	task.Server = server
	out.finish(wire.ResultResponse(req.ID, task.Created(x.taskClock(task))), 0)
}

func (x *exchange) task(name string, ref bridge.TaskRef, req bridge.Request) *bridge.Task {
	task := bridge.NewTask(name, ref, req.Abilities())
	task.Keep = x.opts.Host.Limits().EventAge
	return task
}

// taskClock is the time, and how long the client of a task is told to wait.
func (x *exchange) taskClock(task *bridge.Task) (now time.Time, poll time.Duration) {
	now = time.Now()
	return now, x.opts.Host.Pace(task.Age(now))
}

// serveTask serves the methods of the extension.
func (x *exchange) serveTask(req bridge.Request) error {
	if !req.KnowsTasks() {
		return bridge.NeedsTasks()
	}
	name, _ := wire.String(wire.Lookup(req.Params, "taskId"))
	ref, ok := x.taskRef(name)
	if !ok {
		return bridge.NoTask()
	}
	result := bridge.Acknowledged()
	var err error
	switch req.Method {
	case wire.MethodTasksUpdate:
		err = x.updateTask(req, name, ref)
	case wire.MethodTasksCancel:
		err = x.opts.Host.Abandon(x.ctx(), x.caller, ref.Stream, "the client cancelled the task")
	default:
		result, err = x.getTask(req, name, ref)
	}
	if err != nil {
		return err
	}
	x.reply(req).finish(wire.ResultResponse(req.ID, result), 0)
	return nil
}

// taskRef opens the name of a task; ok is false if it is not one of the caller's.
func (x *exchange) taskRef(name string) (ref bridge.TaskRef, ok bool) {
	plain, ok := x.opts.Sealer.Open(name)
	if !ok {
		return bridge.TaskRef{}, false
	}
	ref, ok = bridge.ReadTaskRef(plain)
	return ref, ok && ref.Session == host.PinnedID(x.caller)
}

func (x *exchange) getTask(req bridge.Request, name string, ref bridge.TaskRef) (json.RawMessage, error) {
	task, _, answered, err := x.recall(req, name, ref)
	if err != nil {
		return nil, err
	}
	now, poll := x.taskClock(task)
	return task.Detailed(answered, now, poll), nil
}

// recall finds out what has become of a task, and answers in the client's place what
// it cannot be asked.
func (x *exchange) recall(req bridge.Request, name string, ref bridge.TaskRef) (*bridge.Task, *host.Recalled, map[string]bool, error) {
	call, err := x.recalled(ref)
	if err == nil && !call.Ended() {
		err = x.opts.Host.LookAfter(x.ctx(), call)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if call.Lost && time.Since(ref.Made) >= x.opts.Host.Limits().EventAge {
		return nil, nil, nil, bridge.NoTask()
	}
	task := x.task(name, ref, req)
	task.Server, task.Lost = call.Server, call.Lost
	for _, e := range call.Events {
		task.Take(e)
	}
	answered, err := x.settleTask(task, call)
	return task, call, answered, err
}

func (x *exchange) recalled(ref bridge.TaskRef) (*host.Recalled, error) {
	call, err := x.opts.Host.Recall(x.ctx(), x.caller, ref.Stream)
	if errors.Is(err, session.NotFound) {
		return nil, bridge.NoTask()
	}
	return call, err
}

// settleTask says which questions of a task are answered by now, those included that
// nobody else would answer.
func (x *exchange) settleTask(task *bridge.Task, call *host.Recalled) (answered map[string]bool, err error) {
	if task.Ended() {
		return nil, nil
	}
	if answered, err = x.opts.Host.Answered(x.ctx(), call, task.Questions()); err != nil {
		return nil, err
	}
	return answered, x.opts.Host.Answer(x.ctx(), call, task.Refusals(answered)...)
}

// updateTask hands over answers to what the call of a task has asked.
func (x *exchange) updateTask(req bridge.Request, name string, ref bridge.TaskRef) error {
	responses := wire.Lookup(req.Params, "inputResponses")
	if len(responses) == 0 || responses[0] != '{' {
		return &wire.Error{Code: wire.CodeInvalidParams, Message: "params.inputResponses must be an object with an answer for each key"}
	}
	call, err := x.recalled(ref)
	if err != nil {
		return err
	}
	task := x.task(name, ref, req)
	for _, e := range call.Events {
		task.Take(e)
	}
	answered, err := x.settleTask(task, call)
	if err != nil {
		return err
	}
	answers, err := task.Answers(responses, answered)
	if err != nil {
		return err
	}
	return x.opts.Host.Answer(x.ctx(), call, answers...)
}
