// Command http is the Lambda function behind the REST API, for all HTTP clients.
package main

import (
	"github.com/dormouse-mcp/dormouse/functions/internal/serve"
)

func main() { serve.HTTP(nil) }
