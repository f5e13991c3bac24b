// Command runner is the program of a box where no dormouse is: the image of boxes on AWS
// has it. On one machine dormouse is its own runner.
package main

import (
	"os"

	"github.com/dormouse-mcp/dormouse/infra/runner"
	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
)

func main() {
	sandbox.Enter(os.Args)
	runner.Main()
}
