package native

import (
	"maps"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/dormouse-mcp/dormouse/shared/bridge"
)

// TaskSupport is what a tool says of tasks (execution.taskSupport): whether a call of it
// may become a task for a client that knows them. A call that takes long becomes one even
// if its tool says nothing.
type TaskSupport = bridge.TaskSupport

// The values of TaskSupport.
const (
	TaskForbidden = bridge.TaskForbidden // it never becomes one
	TaskOptional  = bridge.TaskOptional  // it is meant to become one: soon, and not after a second
	TaskRequired  = bridge.TaskRequired  // as optional; clients that know none are refused (-32021)
)

// AsTask returns the tool with its support of tasks set. go-sdk 1.8 has no field for it.
func AsTask(t *mcp.Tool, support TaskSupport) *mcp.Tool {
	says := *t
	says.Meta = maps.Clone(t.Meta)
	if says.Meta == nil {
		says.Meta = mcp.Meta{}
	}
	says.Meta[bridge.MetaTaskSupport] = string(support)
	return &says
}
