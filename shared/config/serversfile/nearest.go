package serversfile

import (
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/suggest"
)

// Closest returns the one of names that is closest to name, "" if none is close. It
// ignores case.
func Closest(name string, names []string) string { return suggest.Of(name, names, 1+len(name)/3) }

// Instead returns what to say after a name that does not exist: the nearest one, or all
// of them.
func Instead(name string, names []string) string {
	if near := Closest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	if len(names) == 0 {
		return "there are none"
	}
	return "there are " + strings.Join(names, ", ")
}
