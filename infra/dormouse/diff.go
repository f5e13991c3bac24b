package dormouse

import (
	"cmp"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/difference"
)

// around is how many unchanged lines lineDiff shows before and after a change.
const around = 2

// lineDiff returns the lines that differ between two texts, and a few unchanged lines around them.
// Removed lines begin with "- ", and added ones with "+ ". "  ⋮" stands for unchanged lines that
// are left out.
func lineDiff(before, after string) string {
	a, b := strings.Split(strings.TrimSuffix(before, "\n"), "\n"), strings.Split(strings.TrimSuffix(after, "\n"), "\n")
	if before == "" {
		a = nil
	}
	lines := make([]string, 0, len(a)+len(b))
	difference.Of(a, b, func(op, line string) { lines = append(lines, cmp.Or(op, " ")+" "+line) })
	return clipped(lines)
}

// clipped leaves out unchanged lines that are far from any change.
func clipped(lines []string) string {
	var out strings.Builder
	skipped := false
	for i, line := range lines {
		near := false
		for _, other := range lines[max(0, i-around):min(len(lines), i+around+1)] {
			near = near || other[0] != ' '
		}
		if near {
			out.WriteString(line + "\n")
		} else if !skipped {
			out.WriteString("  ⋮\n")
		}
		skipped = !near
	}
	return out.String()
}
