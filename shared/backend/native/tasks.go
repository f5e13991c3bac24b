package native

import (
	"maps"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/mcp/bridge"
)

// TaskSupport is a tool's support of tasks (execution.taskSupport). It says whether a call
// of the tool may become a task for a client that supports tasks. A call that takes long
// becomes one even if its tool says nothing.
type TaskSupport = bridge.TaskSupport

// The values of TaskSupport.
const (
	TaskForbidden = bridge.TaskForbidden // a call never becomes a task
	TaskOptional  = bridge.TaskOptional  // a call that takes longer than 250 ms becomes a task
	TaskRequired  = bridge.TaskRequired  // like optional; a client without support for tasks gets the error -32021
)

// AsTask returns the tool with its support of tasks set. go-sdk 1.8 has no field for that.
func AsTask(t *mcp.Tool, support TaskSupport) *mcp.Tool {
	says := *t
	says.Meta = maps.Clone(t.Meta)
	if says.Meta == nil {
		says.Meta = mcp.Meta{}
	}
	says.Meta[bridge.MetaTaskSupport] = string(support)
	return &says
}
