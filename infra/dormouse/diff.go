package dormouse

import (
	"cmp"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/difference"
)

// around is how many equal lines a difference shows around each change.
const around = 2

// lineDiff returns the lines that differ between two texts, with a few equal lines around
// them. It puts "- " before removed lines and "+ " before added ones. "  ⋮" stands for
// lines that are left out.
func lineDiff(before, after string) string {
	a, b := strings.Split(strings.TrimSuffix(before, "\n"), "\n"), strings.Split(strings.TrimSuffix(after, "\n"), "\n")
	if before == "" {
		a = nil
	}
	lines := make([]string, 0, len(a)+len(b))
	difference.Of(a, b, func(op, line string) { lines = append(lines, cmp.Or(op, " ")+" "+line) })
	return clipped(lines)
}

// clipped leaves out equal lines that are far from any change.
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
