// Package natives holds the servers that are part of the functions: a file for each
// server, and the map with their names. To add a server, write a file like counter.go and
// add a line in this file. The functions host it if the servers file says
//
//	"mycounter": {"x-dormouse": {"native": "counter"}}
package natives

import "github.com/dormouse-mcp/dormouse/shared/native"

// Servers returns the servers of this package by their names in the servers file.
func Servers() native.Servers {
	return native.Servers{
		"booking": booking,
		"counter": counter,
		"job":     job,
	}
}
