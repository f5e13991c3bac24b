// Package natives is the servers that are part of the functions: one file for each,
// and the map that gives them their names. To add one is to write a file like
// counter.go and a line here; it is hosted once the servers file says
//
//	"mycounter": {"x-dormouse": {"native": "counter"}}
package natives

import "github.com/dormouse-mcp/dormouse/shared/native"

// Servers are the servers of this package, by the names that the servers file calls
// them by.
func Servers() native.Servers {
	return native.Servers{
		"booking": booking,
		"counter": counter,
		"job":     job,
	}
}
