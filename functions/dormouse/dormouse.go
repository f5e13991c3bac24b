// Package dormouse makes a program out of native servers, which are servers in Go. The whole
// program is a main function that calls [Main]:
//
//	func main() { dormouse.Main(native.Servers{"hello": hello}) }
//
// The program has every command of dormouse: go run . run hosts the servers on this machine. Built
// with the tag aws, the same source is the program of the Lambda functions that have the servers.
package dormouse

import (
	"os"

	"github.com/dormouse-mcp/dormouse/functions/internal/serve"
	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// Main runs the program. In a Lambda function it runs the function that the handler setting names,
// http or socket. Elsewhere it runs the command line. It does not return.
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
