// Package dormouse makes a program out of servers in Go. The whole program is a main that
// calls [Main]:
//
//	func main() { dormouse.Main(native.Servers{"hello": hello}) }
//
// It has every command of dormouse: go run . run hosts the servers on this machine. Built
// with the tag aws, the same source is the Lambda functions that have the servers, and
// nothing else.
package dormouse

import (
	"os"

	"github.com/dormouse-mcp/dormouse/functions/internal/serve"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// Main is the whole program. In a Lambda function it is the function that the function's
// handler names, http or socket. Everywhere else it executes the command line. Main does
// not return.
func Main(servers native.Servers) {
	switch os.Getenv("_HANDLER") {
	case "http":
		serve.HTTP(servers)
	case "socket":
		serve.Socket(servers)
	default:
		commandLine(servers)
	}
}
