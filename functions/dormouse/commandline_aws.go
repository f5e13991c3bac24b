//go:build aws

package dormouse

import (
	"fmt"
	"os"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
)

// commandLine fails. Functions are built without the command line, because it would make them
// larger.
func commandLine(native.Servers) {
	fmt.Fprintf(os.Stderr, "the handler of this function is %q; want http or socket: set Handler in template.yaml\n", os.Getenv("_HANDLER"))
	os.Exit(1)
}
