package transport

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
)

// The extension io.modelcontextprotocol/tasks is for requests of the modern era.
//
// A client that declares the extension in a tools/call need not hold its response when the call takes
// long. It gets a name for the call, and fetches the result by that name. The call itself goes on
// unchanged, and no invocation waits for it. In the list of checks in validate.go, those of the
// extension's methods come last:
//
//	tasks not declared            400 -32021  bridge.NeedsTasks
//	no name of a task, or expired 400 -32602  bridge.NoTask
//
// If the server offers tasks, the execution.taskSupport of a tool decides whether its calls become
// tasks. It is known if the client has listed the tools, or calls a group. If it is absent or not
// known, sessions.TaskMode decides.

// soon is how long a call runs before it becomes a task, if its tool supports tasks or its server
// has [sessions.TasksAlways].
const soon = 250 * time.Millisecond

// after returns how long the call may take before it becomes a task. ok is false if it
// never becomes one.
func (m modern) after(notes json.RawMessage) (after time.Duration, ok bool) {
	if m.req.Method != wire.MethodToolsCall || !m.req.KnowsTasks() || !m.servesTasks() {
		return 0, false
	}
	switch support := bridge.NotedTasks(notes, m.req); {
	case support == bridge.TaskForbidden:
		return 0, false
	case support != "", m.to.Caller.Server.Tasks == sessions.TasksAlways:
		return min(soon, m.x.opts.JSONWindow), true
	default:
		return m.x.opts.JSONWindow, true
	}
}

// lacking reports whether the tool can only be called as a task and the client does not
// know tasks.
func (m modern) lacking(notes json.RawMessage) bool {
	return m.servesTasks() && !m.req.KnowsTasks() && bridge.NotedTasks(notes, m.req) == bridge.TaskRequired
}

// create answers a call with the name of the task that it becomes. The call has been
// accepted, so the client can find it by that name.
func (m modern) create(out *reply, call *sessions.Call, server json.RawMessage) {
	ref := bridge.TaskRef{Session: sessions.PinnedID(m.to.Caller), Stream: call.Stream(), Made: time.Now(), Abilities: m.req.Abilities()}
	task := m.newTask(m.x.opts.Sealer.Seal(ref.Encode()), ref)
	task.Server = server
	m.outlives(call)
	out.finish(wire.ResultResponse(m.req.ID, task.Created(m.clock(task))), 0)
}

func (m modern) newTask(name string, ref bridge.TaskRef) *bridge.Task {
	task := bridge.NewTask(name, ref, m.req.Abilities())
	task.Keep = m.x.opts.Host.Limits().EventAge
	return task
}

// clock returns the current time, and how long the client of a task should wait before
// it asks again.
func (m modern) clock(task *bridge.Task) (now time.Time, poll time.Duration) {
	now = time.Now()
	return now, sessions.PaceAt(task.Age(now))
}

// task serves the methods of the tasks extension.
func (m modern) task() error {
	if !m.req.KnowsTasks() {
		return bridge.NeedsTasks()
	}
	name, _ := wire.String(wire.Lookup(m.req.Params, "taskId"))
	ref, ok := m.ref(name)
	if !ok {
		return bridge.NoTask()
	}
	result := bridge.Acknowledged()
	var err error
	switch m.req.Method {
	case wire.MethodTasksUpdate:
		err = m.update(name, ref)
	case wire.MethodTasksCancel:
		err = m.x.opts.Host.Abandon(m.ctx, m.to.Caller, ref.Stream, "the client cancelled the task")
	default:
		result, err = m.get(name, ref)
	}
	if err != nil {
		return err
	}
	newReply(m).finish(wire.ResultResponse(m.req.ID, result), 0)
	return nil
}

// ref decrypts the name of a task. ok is false if the name is not one of the caller's tasks.
func (m modern) ref(name string) (ref bridge.TaskRef, ok bool) {
	plain, ok := m.x.opts.Sealer.Open(name)
	if !ok {
		return bridge.TaskRef{}, false
	}
	ref, ok = bridge.ReadTaskRef(plain)
	return ref, ok && ref.Session == sessions.PinnedID(m.to.Caller)
}

func (m modern) get(name string, ref bridge.TaskRef) (json.RawMessage, error) {
	task, call, answered, err := m.look(name, ref)
	if err != nil {
		return nil, err
	}
	if n := len(call.Events); n > 0 && call.Events[n-1].Final {
		m.x.called.stream, m.x.called.said.Stream = ref.Stream, ref.Stream
		m.x.called.ends(call.Events[n-1].Raw, m.x.opts.ShowErrors)
	}
	now, poll := m.clock(task)
	return task.Detailed(answered, now, poll), nil
}

// look finds out the state of a task. In place of the client it answers the server's questions
// that the client cannot answer.
func (m modern) look(name string, ref bridge.TaskRef) (*bridge.Task, *sessions.Recalled, map[string]bool, error) {
	call, err := m.recall(ref)
	if err == nil && !call.Ended() {
		err = call.LookAfter(m.ctx)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if call.Lost && time.Since(ref.Made) >= m.x.opts.Host.Limits().EventAge {
		return nil, nil, nil, bridge.NoTask()
	}
	task := m.newTask(name, ref)
	task.Server, task.Lost = call.Server, call.Lost
	for _, e := range call.Events {
		task.Take(e)
	}
	answered, err := m.answered(task, call)
	return task, call, answered, err
}

func (m modern) recall(ref bridge.TaskRef) (*sessions.Recalled, error) {
	call, err := m.x.opts.Host.Recall(m.ctx, m.to.Caller, ref.Stream)
	if errors.Is(err, storage.NotFound) {
		return nil, bridge.NoTask()
	}
	return call, err
}

// answered returns which questions of a task have an answer by now. In place of the client, it
// answers the questions that the client cannot.
func (m modern) answered(task *bridge.Task, call *sessions.Recalled) (answered map[string]bool, err error) {
	if task.Ended() {
		return nil, nil
	}
	if answered, err = call.Answered(m.ctx, task.Questions()); err != nil {
		return nil, err
	}
	return answered, call.Answer(m.ctx, task.Refusals(answered)...)
}

// update passes the client's answers to the call of a task.
func (m modern) update(name string, ref bridge.TaskRef) error {
	responses := wire.Lookup(m.req.Params, "inputResponses")
	if len(responses) == 0 || responses[0] != '{' {
		return &wire.Error{Code: wire.CodeInvalidParams, Message: "params.inputResponses must be an object with an answer for each key"}
	}
	call, err := m.recall(ref)
	if err != nil {
		return err
	}
	task := m.newTask(name, ref)
	for _, e := range call.Events {
		task.Take(e)
	}
	answered, err := m.answered(task, call)
	if err != nil {
		return err
	}
	answers, err := task.Answers(responses, answered)
	if err != nil {
		return err
	}
	return call.Answer(m.ctx, answers...)
}
