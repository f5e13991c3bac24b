// Command runner runs a box where the command dormouse is not installed, such as in the container
// image of boxes on AWS. The boxes of dormouse run are run by the command dormouse itself.
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
