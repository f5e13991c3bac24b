// Command http is the Lambda function behind the REST API, for all HTTP clients.
package main

import (
	"github.com/dormouse-mcp/dormouse/functions/natives"
	"github.com/dormouse-mcp/dormouse/functions/run"
)

func main() { run.HTTP(natives.Servers()) }
