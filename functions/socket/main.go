// Command socket is the Lambda function for MCP clients that use WebSockets, behind a WebSocket
// API.
package main

import (
	"github.com/dormouse-mcp/dormouse/functions/internal/serve"
)

func main() { serve.Socket(nil) }
