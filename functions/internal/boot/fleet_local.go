//go:build !aws

package boot

import (
	"os"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
	"github.com/dormouse-mcp/dormouse/shared/fleet/process"
)

// listLag: what this machine runs is known at once.
const listLag = 0

// fleet is this machine's: boxes are processes.
func (f *Function) fleet() (fleet.Fleet, error) {
	return process.NewClient(os.Getenv(EnvFleetSocket)), nil
}
