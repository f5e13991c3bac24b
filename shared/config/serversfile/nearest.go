package serversfile

import (
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/suggest"
)

// Instead returns what to say after a name that does not exist: the nearest one, or all
// of them.
func Instead(name string, names []string) string {
	if near := suggest.Of(name, names, 1+len(name)/3); near != "" {
		return "did you mean " + near + "?"
	}
	if len(names) == 0 {
		return "there are none"
	}
	return "there are " + strings.Join(names, ", ")
}
