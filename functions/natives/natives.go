// Command natives is an example of a program with native servers, each in a file. A servers file
// for this program names them as follows:
//
//	"mycounter": {"x-dormouse": {"native": "counter"}}
package main

import (
	"github.com/dormouse-mcp/dormouse/functions/dormouse"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

func main() { dormouse.Main(servers()) }

func servers() native.Servers {
	return native.Servers{"booking": booking, "counter": counter, "job": job}
}
