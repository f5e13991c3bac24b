//go:build !linux

package local

import "github.com/dormouse-mcp/dormouse/shared/operate/api"

// boxProcesses returns no processes: only Linux lists them.
func boxProcesses(int) []api.Member { return []api.Member{} }

func inSessions([]int) []api.Member { return []api.Member{} }

// residentBytes returns 0: only Linux tells the memory of another process.
func residentBytes(int) int64 { return 0 }
