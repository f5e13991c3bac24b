// Command socket is the Lambda function behind the WebSocket API for MCP clients.
package main

import (
	"github.com/dormouse-mcp/dormouse/functions/internal/serve"
)

func main() { serve.Socket(nil) }
