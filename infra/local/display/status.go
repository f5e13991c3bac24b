package display

import (
	"fmt"
	"strings"
	"time"
)

// seen holds the counts that the status line shows.
type seen struct {
	awake    map[int]bool    // ids of the processes of awake boxes
	sessions map[string]bool // ids of sessions that had a call or a start of a server
	calls    int
	failed   int
	refused  int
	cost     float64
	costAt   time.Time
}

// maxSessions limits how many sessions the status line distinguishes.
const maxSessions = 100_000

// status returns the status line. If cost is nil, the line leaves out what AWS would have billed.
func (s *seen) status(now time.Time, cost func() float64) string {
	parts := []string{"nothing runs"}
	if n := len(s.awake); n > 0 {
		parts[0] = fmt.Sprintf("%d awake", n)
	}
	parts = append(parts, Count(len(s.sessions), "session"))
	calls := Count(s.calls, "call")
	if s.failed > 0 {
		calls += fmt.Sprintf(", %d failed", s.failed)
	}
	if s.refused > 0 {
		calls += fmt.Sprintf(", %d refused", s.refused)
	}
	parts = append(parts, calls)
	if cost != nil {
		if now.Sub(s.costAt) >= time.Second {
			s.cost, s.costAt = cost(), now
		}
		parts = append(parts, "AWS would bill "+dollars(s.cost))
	}
	return "─ " + strings.Join(parts, " · ")
}

// dollars formats an amount with two decimals, or with four if it is less than one dollar.
func dollars(usd float64) string {
	if usd >= 1 {
		return fmt.Sprintf("$%.2f", usd)
	}
	return fmt.Sprintf("$%.4f", usd)
}
