package box

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// Tasks of 2025-11-25 are between the box and the process. Clients are not told of
// them: a task is in the memory of a process, and who polls for it would keep that
// awake. A tool that can be called as a task only (execution.taskSupport "required") is
// called as one in its client's place, and its result is asked for at once: tasks/result
// is answered when the task is over, and brings what it asks meanwhile. To the client it
// is a call like any other, with its progress, its questions and its deadline; a cancel
// becomes tasks/cancel.
//
// Which tools these are the lists say that pass by. A call that ends in an error before
// that has the box list the tools itself, once in the life of the process: only such a
// tool has certainly not run, and may be called again.

// task is what a tools/call in flight has become in the process.
type task struct {
	id json.RawMessage // nil until the process has named it
}

// taskTools is what is known of the tools of a process with tasks.
type taskTools struct {
	needed map[string]bool // tools that can be called as a task only
	all    bool            // all tools are known
	asking map[int64]doubt // lists that were asked for, by the id of the request
}

// doubt is a call that has ended in an error, by a tool of which nothing is known.
type doubt struct {
	r   *request
	end wire.Message
}

// introduced takes the result of initialize, and takes out of it what clients are not
// told.
func (p *process) introduced(result json.RawMessage) {
	var calls bool
	if p.result, calls = bridge.WithoutLegacyTasks(result); calls {
		p.tasks = &taskTools{needed: map[string]bool{}, asking: map[int64]doubt{}}
	}
}

// outgoing takes a request that is sent for the first time, and returns what is sent.
func (p *process) outgoing(r *request, line []byte) []byte {
	if p.tasks == nil || r.method != wire.MethodToolsCall || r.passed != nil {
		return line
	}
	r.line = line
	if !p.needsTask(r) {
		return line
	}
	r.task = &task{}
	return bridge.AsLegacyTask(line, p.taskLife())
}

// needsTask says that a call has to be a task, and is none by its client's own wish.
func (p *process) needsTask(r *request) bool {
	name, _ := wire.String(wire.Lookup(r.line, "params", "name"))
	return p.tasks.needed[name] && wire.Lookup(r.line, "params", "task") == nil
}

// asTask takes a response that is about a task. It is false for one that is the
// client's.
func (p *process) asTask(r *request, m wire.Message) bool {
	switch {
	case p.tasks == nil || r.method != wire.MethodToolsCall:
		return false
	case r.task == nil:
		failed := m.Error != nil || string(wire.Lookup(m.Result, "isError")) == "true"
		if !failed || p.tasks.all || wire.Lookup(r.line, "params", "task") != nil {
			return false
		}
		p.askTools(doubt{r, m}, nil)
		return true
	case r.task.id != nil:
		return false // the result
	}
	if r.task.id = wire.Lookup(m.Result, "task", "taskId"); r.task.id == nil {
		return false
	}
	p.sendAgain(r, wire.NewRequest(r.id, wire.MethodTasksResult, p.taskParams(r)))
	return true
}

// askTools asks for a page of the list of tools.
func (p *process) askTools(d doubt, cursor json.RawMessage) {
	n := p.conv.own()
	p.tasks.asking[n] = d
	var params json.RawMessage
	if cursor != nil {
		params = json.RawMessage(`{"cursor":` + string(cursor) + `}`)
	}
	p.write(wire.NewRequest(strconv.AppendInt(nil, n, 10), wire.MethodToolsList, params))
}

// toolsTold takes a page that was asked for. It is false for any other response.
func (p *process) toolsTold(n int64, m wire.Message) bool {
	if p.tasks == nil {
		return false
	}
	d, ok := p.tasks.asking[n]
	if !ok {
		return false
	}
	delete(p.tasks.asking, n)
	p.learn(m.Result)
	cursor := wire.Lookup(m.Result, "nextCursor")
	p.tasks.all = p.tasks.all || m.Error == nil && cursor == nil
	switch {
	case p.conv.requests[d.r.number] != d.r: // it has ended meanwhile
	case p.needsTask(d.r):
		d.r.task = &task{}
		p.sendAgain(d.r, bridge.AsLegacyTask(d.r.line, p.taskLife()))
	case cursor != nil:
		p.askTools(d, cursor)
	default:
		p.conv.response(d.end)
	}
	return true
}

// learn notes what a list says of tools.
func (p *process) learn(list json.RawMessage) {
	for _, name := range bridge.LegacyNeed(list) {
		p.tasks.needed[name] = true
	}
}

// listed is a list of tools for clients, who can call all of them.
func (p *process) listed(r *request, m wire.Message) wire.Message {
	if p.tasks != nil && r.method == wire.MethodToolsList && m.Error == nil {
		p.learn(m.Result)
		m.Result = bridge.WithoutLegacyNeed(m.Result)
	}
	return m
}

// ofTasks takes a notification that says something about tools or tasks. It is true for
// one that is nobody else's.
func (p *process) ofTasks(m wire.Message) bool {
	if p.tasks != nil && m.Method == wire.NotifyToolsChanged {
		p.tasks.needed, p.tasks.all = map[string]bool{}, false
	}
	return p.tasks != nil && m.Method == wire.NotifyTaskStatus
}

// taskLife is how long the process has to keep a task: for as long as the call can be
// waited for, 0 if that has no end.
func (p *process) taskLife() time.Duration {
	if p.box.server.ToolTimeout < 0 {
		return 0
	}
	return p.box.server.ToolTimeout + p.box.server.AnswerTimeout
}

func (p *process) taskParams(r *request) json.RawMessage {
	return json.RawMessage(`{"taskId":` + string(r.task.id) + `}`)
}

// sendAgain sends a request in another form, under another number. Its progress token
// stays the one it had.
func (p *process) sendAgain(r *request, line []byte) {
	line, _ = wire.Replace(line, strconv.AppendInt(nil, p.conv.again(r), 10), "id")
	if !p.write(wire.Compact(line)) {
		p.conv.end(r, p.deaf().response(r.id))
	}
}

// cancelTask has the process stop working for a request that has become a task. It is
// false for any other.
func (p *process) cancelTask(r *request) bool {
	if r.task == nil || r.task.id == nil {
		return false
	}
	n := p.conv.own()
	p.own[n] = true
	p.write(wire.NewRequest(strconv.AppendInt(nil, n, 10), wire.MethodTasksCancel, p.taskParams(r)))
	return true
}
