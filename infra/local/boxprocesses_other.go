//go:build !linux

package local

import "github.com/dormouse-mcp/dormouse/shared/operate/api"

// inSessions returns no processes: only Linux can list them.
func inSessions([]int) []api.Member { return []api.Member{} }

// residentBytes returns 0: only Linux can tell.
func residentBytes(int) int64 { return 0 }
