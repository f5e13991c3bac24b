// Command socket is the Lambda function behind the WebSocket API for MCP clients.
package main

import (
	"github.com/dormouse-mcp/dormouse/functions/natives"
	"github.com/dormouse-mcp/dormouse/functions/run"
)

func main() { run.Socket(natives.Servers()) }
