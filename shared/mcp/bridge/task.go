package bridge

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Tasks is the name of an extension (2026-07-28). A client gets a taskId in place of the result of a
// call, and fetches the result later.
const Tasks = metaPrefix + "tasks"

// KnowsTasks reports whether the request declares tasks.
func (r Request) KnowsTasks() bool {
	return isObject(wire.Lookup(r.Capabilities, "extensions", Tasks))
}

// WithoutTasks returns the request without the client's declaration of tasks. Servers must not see
// the declaration, because tasks/get does not reach servers.
func (r Request) WithoutTasks() Request {
	if !r.KnowsTasks() {
		return r
	}
	capabilities, _ := objectOf(r.Capabilities)
	r.Capabilities = withoutTasks(capabilities).encode()
	r.Params, _ = wire.Replace(r.Params, r.Capabilities, "_meta", wire.MetaClientCapabilities)
	return r
}

// NeedsTasks returns the error for a client that has not declared tasks but needs them.
func NeedsTasks() *wire.Error {
	return &wire.Error{
		Code:    wire.CodeMissingCapability,
		Message: "this needs the client capability extensions." + Tasks + "; declare it",
		Data:    map[string]json.RawMessage{"requiredCapabilities": required([]string{"extensions", Tasks})},
	}
}

// NoTask returns the error for a taskId that Dormouse did not make, that belongs to another caller, or
// whose task is not kept any more.
func NoTask() *wire.Error {
	return invalid("params.taskId is no task of this caller, or it has expired; call the tool anew")
}

// IsTaskMethod reports whether a method belongs to the extension [Tasks].
func IsTaskMethod(method string) bool {
	return method == wire.MethodTasksGet || method == wire.MethodTasksUpdate || method == wire.MethodTasksCancel
}

// TaskRef is the content of a taskId, which is sealed. A taskId is valid only for the caller to whom
// Session belongs.
type TaskRef struct {
	Session   storage.ID
	Stream    storage.StreamID // stream of the call
	Made      time.Time        // when the call became a task, to the millisecond
	Abilities string           // the client's capabilities, as [Request.Abilities] writes them
}

// taskMark distinguishes a taskId from other data that is sealed for clients.
const taskMark = "task"

// Encode returns a reference as text, to be sealed.
func (r TaskRef) Encode() []byte {
	made := strconv.FormatInt(r.Made.UnixMilli(), 36)
	return []byte(strings.Join([]string{taskMark, string(r.Session), string(r.Stream), made, r.Abilities}, " "))
}

// ReadTaskRef reads what Encode wrote; ok is false for anything else.
func ReadTaskRef(plain []byte) (r TaskRef, ok bool) {
	parts := strings.Split(string(plain), " ")
	if len(parts) != 5 || parts[0] != taskMark {
		return TaskRef{}, false
	}
	made, err := strconv.ParseInt(parts[3], 36, 64)
	r = TaskRef{Session: storage.ID(parts[1]), Stream: storage.StreamID(parts[2]), Made: time.UnixMilli(made), Abilities: parts[4]}
	return r, err == nil && !r.Stream.Time().IsZero()
}

// abilities returns the capabilities by which clients declare that they can answer questions. In a
// taskId each capability is a letter, from "a" on, so their order must not change.
func abilities() [][]string {
	return [][]string{
		{"roots"},
		{"sampling"},
		{"sampling", "context"},
		{"sampling", "tools"},
		{"elicitation", "form"},
		{"elicitation", "url"},
	}
}

// Abilities returns which questions the client can answer, as a string with a letter for each capability
// that it declares.
func (r Request) Abilities() string {
	var word []byte
	for i, path := range abilities() {
		if declared(r.Capabilities, path) {
			word = append(word, 'a'+byte(i))
		}
	}
	return string(word)
}

// capabilitiesOf returns the capabilities for the letters that [Request.Abilities] has returned.
func capabilitiesOf(word string) json.RawMessage {
	all := object{}
	for i, path := range abilities() {
		if !strings.ContainsRune(word, 'a'+rune(i)) {
			continue
		}
		of, _ := objectOf(all.get(path[0]))
		for _, finer := range path[1:] {
			of = of.with(finer, json.RawMessage("{}"))
		}
		all = all.with(path[0], of.encode())
	}
	return all.encode()
}

// Task is a task as its client sees it, made of the events of its call. The caller gives it all events,
// from the first on. One goroutine uses it.
type Task struct {
	Name   string          // the taskId
	Keep   time.Duration   // how long the log keeps an event
	Lost   bool            // the result is not kept any more
	Server json.RawMessage // the server's serverInfo

	stream       storage.StreamID // stream of the call
	made         time.Time        // when the call became a task
	capabilities json.RawMessage  // of the client that made the call, and of the one that fetches the task
	asked        []question       // questions that the server has asked and not withdrawn
	said         string           // message of the latest progress notification
	response     *wire.Message    // response to the call, nil until the call has ended
}

// NewTask makes a Task from its reference. abilities are the [Request.Abilities] of the request that
// fetches the task. The request may come from another client than the call.
func NewTask(name string, ref TaskRef, abilities string) *Task {
	return &Task{Name: name, stream: ref.Stream, made: ref.Made, capabilities: capabilitiesOf(ref.Abilities + abilities)}
}

// Age returns how long ago the call became a task.
func (t *Task) Age(now time.Time) time.Duration { return now.Sub(t.made) }

// Take updates the task by the next event of its call.
func (t *Task) Take(e storage.Event) {
	m, err := wire.Parse(e.Raw)
	switch {
	case err != nil: // the event has no message: it only makes the client connect again (storage.Event.Retry)
	case m.Kind == wire.Request:
		if id, ok := wire.String(m.ID); ok {
			t.asked = append(t.asked, question{id: id, key: id, index: e.Index, method: m.Method, params: bytes.Clone(m.Params)})
		}
	case m.Method == wire.NotifyCancelled:
		id, _ := wire.String(wire.Lookup(m.Params, "requestId"))
		t.asked = slices.DeleteFunc(t.asked, func(q question) bool { return q.id == id })
	case m.Method == wire.NotifyProgress:
		t.said, _ = wire.String(wire.Lookup(m.Params, "message"))
	case m.Kind == wire.Response && wire.SameID(m.ID, text(string(t.stream))):
		m.Result, m.Error = bytes.Clone(m.Result), bytes.Clone(m.Error)
		t.response = &m
	}
}

// Ended reports whether the call has its response.
func (t *Task) Ended() bool { return t.response != nil }

// Questions returns the ids of the questions that the server has asked and not withdrawn.
func (t *Task) Questions() []string {
	ids := make([]string, len(t.asked))
	for i, q := range t.asked {
		ids[i] = q.id
	}
	return ids
}

// Refusals returns the responses to those unanswered questions that the client cannot
// answer.
func (t *Task) Refusals(answered map[string]bool) [][]byte {
	var raws [][]byte
	for _, q := range t.asked {
		needs, known := q.needs()
		if answered[q.id] || t.Ended() || known && declared(t.capabilities, needs) {
			continue
		}
		raws = append(raws, q.refused("the client has not declared that it can be asked "+q.method).Raw)
	}
	return raws
}

// open returns the questions that the client can answer and has not answered.
func (t *Task) open(answered map[string]bool) []question {
	var open []question
	for _, q := range t.asked {
		needs, known := q.needs()
		if !answered[q.id] && known && declared(t.capabilities, needs) {
			open = append(open, q)
		}
	}
	return open
}

// Answers returns the responses to open questions in the inputResponses of a tasks/update. It ignores
// responses to other questions.
//
// Errors: *[wire.Error] with [wire.CodeInvalidParams] for a malformed answer.
func (t *Task) Answers(responses json.RawMessage, answered map[string]bool) ([][]byte, error) {
	inputs, _ := objectOf(responses)
	var raws [][]byte
	for _, q := range t.open(answered) {
		input := inputs.get(q.key)
		if input == nil || t.Ended() {
			continue
		}
		a, err := response(q.id, q.key, q.method, input)
		if err != nil {
			return nil, err
		}
		raws = append(raws, a.Raw)
	}
	return raws, nil
}

const (
	statusWorking   = "working"
	statusInput     = "input_required"
	statusCompleted = "completed"
	statusFailed    = "failed"
	statusCancelled = "cancelled"
)

// state returns the status of the task, and the members of the task that depend on the status.
func (t *Task) state(answered map[string]bool) (status string, members object) {
	switch r := t.response; {
	case r != nil && r.Error == nil:
		return statusCompleted, object{{"result", Result(wire.MethodToolsCall, r.Result, t.Server)}}
	case r != nil && string(wire.Lookup(r.Error, "code")) == cancelledCode:
		return statusCancelled, nil
	case r != nil:
		fault, _ := Fault(r.Error)
		members = object{{"error", fault}}
		if said := wire.Lookup(fault, "message"); said != nil {
			members = append(members, member{"statusMessage", said})
		}
		return statusFailed, members
	case t.Lost:
		const why = "what the call came to is not kept any more; call it again"
		return statusFailed, object{{"error", object{{"code", json.RawMessage("-32603")}, {"message", text(why)}}.encode()}, {"statusMessage", text(why)}}
	}
	if open := t.open(answered); len(open) > 0 {
		inputs := make(object, len(open))
		for i, q := range open {
			inputs[i] = member{q.key, q.withContext(t.capabilities).input()}
		}
		return statusInput, object{{inputRequests, inputs.encode()}}
	}
	if t.said != "" {
		return statusWorking, object{{"statusMessage", text(t.said)}}
	}
	return statusWorking, nil
}

// cancelledCode is [wire.CodeCancelled] as JSON.
const cancelledCode = "-32800"

// Sign returns a text that changes when the status of the task or its open questions change.
func (t *Task) Sign(answered map[string]bool) string {
	status, _ := t.state(answered)
	for _, q := range t.open(answered) {
		status += " " + q.key
	}
	return status
}

// Waits reports whether the call still runs and asks the client nothing.
func (t *Task) Waits(answered map[string]bool) bool {
	status, _ := t.state(answered)
	return status == statusWorking
}

func (t *Task) members(status string, now time.Time, poll time.Duration) object {
	// No record says when the status changed, so a task that is no longer "working" gets the present time.
	// ttlMs counts from createdAt, but the result is kept for t.Keep from the end of the call, which can be
	// at any time. ttlMs is therefore the next multiple of t.Keep after the age of the task.
	updated, keep := now, t.Keep*(1+t.Age(now)/t.Keep)
	if status == statusWorking {
		updated = t.made
	}
	return object{
		{"taskId", text(t.Name)},
		{"status", text(status)},
		{"createdAt", moment(t.made)},
		{"lastUpdatedAt", moment(updated)},
		{"ttlMs", number(keep.Milliseconds())},
		{"pollIntervalMs", number(poll.Milliseconds())},
	}
}

// Created returns the result of a call that has become a task (CreateTaskResult).
func (t *Task) Created(now time.Time, poll time.Duration) json.RawMessage {
	o := append(object{{"resultType", text(wire.ResultTask)}}, t.members(statusWorking, now, poll)...)
	return o.withMeta(wire.MetaServerInfo, t.Server).encode()
}

// Detailed returns the result of tasks/get (DetailedTask).
func (t *Task) Detailed(answered map[string]bool, now time.Time, poll time.Duration) json.RawMessage {
	o := append(object{{"resultType", text(wire.ResultComplete)}}, t.detailed(answered, now, poll)...)
	return o.withMeta(wire.MetaServerInfo, t.Server).encode()
}

func (t *Task) detailed(answered map[string]bool, now time.Time, poll time.Duration) object {
	status, members := t.state(answered)
	return append(t.members(status, now, poll), members...)
}

// Acknowledged returns the empty result of tasks/update and tasks/cancel.
func Acknowledged() json.RawMessage {
	return object{{"resultType", text(wire.ResultComplete)}}.encode()
}

func moment(t time.Time) json.RawMessage {
	return text(t.UTC().Format("2006-01-02T15:04:05.000Z07:00"))
}

// Task returns the notification that tells the client of a subscriptions/listen the state of a
// task.
func (l *Listener) Task(t *Task, answered map[string]bool, now time.Time, poll time.Duration) []byte {
	return wire.NewNotification(wire.NotifyTasks, append(t.detailed(answered, now, poll), member{"_meta", l.stamp()}).encode())
}
