// Command runner is the program of a box in places without dormouse, such as the box
// image on AWS. On one machine dormouse is its own runner.
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
