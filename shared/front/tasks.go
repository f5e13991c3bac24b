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

// tasks is the extension io.modelcontextprotocol/tasks for one request of the modern era.
//
// A client that declares the extension in a tools/call need not hold its response when
// the call takes long. It gets a name for the call, and fetches the result by that name.
// The call itself goes on unchanged, and no function waits for it. In the ladder of
// validate.go, the checks of the extension's methods come last:
//
//	tasks not declared            400 -32021  bridge.NeedsTasks
//	no name of a task, or expired 400 -32602  bridge.NoTask
//
// host.TaskMode decides which calls become tasks. After it the tool's own
// execution.taskSupport decides, if the client has listed the tools or calls at a group.
type tasks struct {
	x   *exchange
	req bridge.Request
}

// errTask says that the call was accepted, and must become a task now.
var errTask = errors.New("the call becomes a task")

// soon is how long a call runs before it becomes a task, if its tool supports tasks or its
// server has [host.TasksAlways]. Within that time the client gets the result itself, or the
// questions that the call asks.
const soon = 250 * time.Millisecond

// servesTasks reports whether calls of this server may become tasks.
func (x *exchange) servesTasks() bool {
	return x.opts.Sealer != nil && x.caller.Server.Tasks != host.TasksOff
}

// after returns how long the call may take before it becomes a task. ok is false if it
// never becomes one.
func (t tasks) after(notes json.RawMessage) (after time.Duration, ok bool) {
	if t.req.Method != wire.MethodToolsCall || !t.req.KnowsTasks() || !t.x.servesTasks() {
		return 0, false
	}
	switch support := bridge.NotedTasks(notes, t.req); {
	case support == bridge.TaskForbidden:
		return 0, false
	case support != "", t.x.caller.Server.Tasks == host.TasksAlways:
		return min(soon, t.x.opts.JSONWindow), true
	default:
		return t.x.opts.JSONWindow, true
	}
}

// lacking reports whether the tool can only be called as a task and the client does not
// know tasks.
func (t tasks) lacking(notes json.RawMessage) bool {
	return t.x.servesTasks() && !t.req.KnowsTasks() && bridge.NotedTasks(notes, t.req) == bridge.TaskRequired
}

// create answers a call with the name of the task that it becomes. The call has been
// accepted, so the client can find it by that name.
func (t tasks) create(out *reply, call *host.Call, server json.RawMessage) {
	ref := bridge.TaskRef{Session: host.PinnedID(t.x.caller), Stream: call.Stream(), Made: time.Now(), Abilities: t.req.Abilities()}
	task := t.task(t.x.opts.Sealer.Seal(ref.Encode()), ref)
	task.Server = server
	out.finish(wire.ResultResponse(t.req.ID, task.Created(t.clock(task))), 0)
}

func (t tasks) task(name string, ref bridge.TaskRef) *bridge.Task {
	task := bridge.NewTask(name, ref, t.req.Abilities())
	task.Keep = t.x.opts.Host.Limits().EventAge
	return task
}

// clock returns the current time, and how long the client of a task should wait before
// it asks again.
func (t tasks) clock(task *bridge.Task) (now time.Time, poll time.Duration) {
	now = time.Now()
	return now, t.x.opts.Host.Pace(task.Age(now))
}

// serve serves the methods of the extension.
func (t tasks) serve() error {
	if !t.req.KnowsTasks() {
		return bridge.NeedsTasks()
	}
	name, _ := wire.String(wire.Lookup(t.req.Params, "taskId"))
	ref, ok := t.ref(name)
	if !ok {
		return bridge.NoTask()
	}
	result := bridge.Acknowledged()
	var err error
	switch t.req.Method {
	case wire.MethodTasksUpdate:
		err = t.update(name, ref)
	case wire.MethodTasksCancel:
		err = t.x.opts.Host.Abandon(t.x.ctx(), t.x.caller, ref.Stream, "the client cancelled the task")
	default:
		result, err = t.get(name, ref)
	}
	if err != nil {
		return err
	}
	newReply(t.x, t.req).finish(wire.ResultResponse(t.req.ID, result), 0)
	return nil
}

// ref opens the name of a task. ok is false if the name is not one of the caller's
// tasks.
func (t tasks) ref(name string) (ref bridge.TaskRef, ok bool) {
	plain, ok := t.x.opts.Sealer.Open(name)
	if !ok {
		return bridge.TaskRef{}, false
	}
	ref, ok = bridge.ReadTaskRef(plain)
	return ref, ok && ref.Session == host.PinnedID(t.x.caller)
}

func (t tasks) get(name string, ref bridge.TaskRef) (json.RawMessage, error) {
	task, _, answered, err := t.look(name, ref)
	if err != nil {
		return nil, err
	}
	now, poll := t.clock(task)
	return task.Detailed(answered, now, poll), nil
}

// look finds out the state of a task. It answers the questions that the client cannot
// answer.
func (t tasks) look(name string, ref bridge.TaskRef) (*bridge.Task, *host.Recalled, map[string]bool, error) {
	call, err := t.recall(ref)
	if err == nil && !call.Ended() {
		err = t.x.opts.Host.LookAfter(t.x.ctx(), call)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if call.Lost && time.Since(ref.Made) >= t.x.opts.Host.Limits().EventAge {
		return nil, nil, nil, bridge.NoTask()
	}
	task := t.task(name, ref)
	task.Server, task.Lost = call.Server, call.Lost
	for _, e := range call.Events {
		task.Take(e)
	}
	answered, err := t.answered(task, call)
	return task, call, answered, err
}

// recall reads the call of a task.
func (t tasks) recall(ref bridge.TaskRef) (*host.Recalled, error) {
	call, err := t.x.opts.Host.Recall(t.x.ctx(), t.x.caller, ref.Stream)
	if errors.Is(err, session.NotFound) {
		return nil, bridge.NoTask()
	}
	return call, err
}

// answered returns which questions of a task have an answer by now. First it answers those
// that the client cannot answer.
func (t tasks) answered(task *bridge.Task, call *host.Recalled) (answered map[string]bool, err error) {
	if task.Ended() {
		return nil, nil
	}
	if answered, err = t.x.opts.Host.Answered(t.x.ctx(), call, task.Questions()); err != nil {
		return nil, err
	}
	return answered, t.x.opts.Host.Answer(t.x.ctx(), call, task.Refusals(answered)...)
}

// update passes the client's answers to the call of a task.
func (t tasks) update(name string, ref bridge.TaskRef) error {
	responses := wire.Lookup(t.req.Params, "inputResponses")
	if len(responses) == 0 || responses[0] != '{' {
		return &wire.Error{Code: wire.CodeInvalidParams, Message: "params.inputResponses must be an object with an answer for each key"}
	}
	call, err := t.recall(ref)
	if err != nil {
		return err
	}
	task := t.task(name, ref)
	for _, e := range call.Events {
		task.Take(e)
	}
	answered, err := t.answered(task, call)
	if err != nil {
		return err
	}
	answers, err := task.Answers(responses, answered)
	if err != nil {
		return err
	}
	return t.x.opts.Host.Answer(t.x.ctx(), call, answers...)
}
