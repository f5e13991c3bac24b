// Command http is the Lambda function for HTTP clients, behind the REST API.
package main

import (
	"github.com/dormouse-mcp/dormouse/functions/internal/serve"
)

func main() { serve.HTTP(nil) }
