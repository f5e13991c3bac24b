package dormouse

import "strings"

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
	first, last := 0, 0 // equal lines at both ends
	for first < min(len(a), len(b)) && a[first] == b[first] {
		first++
	}
	for last < min(len(a), len(b))-first && a[len(a)-1-last] == b[len(b)-1-last] {
		last++
	}
	lines := make([]string, 0, len(a)+len(b))
	for _, line := range a[:first] {
		lines = append(lines, "  "+line)
	}
	lines = append(lines, middle(a[first:len(a)-last], b[first:len(b)-last])...)
	for _, line := range a[len(a)-last:] {
		lines = append(lines, "  "+line)
	}
	return clipped(lines)
}

// middle compares texts by their longest common subsequence of lines.
func middle(a, b []string) (lines []string) {
	longest := make([][]int, len(a)+1)
	for i := range longest {
		longest[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			lines = append(lines, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && longest[i+1][j] >= longest[i][j+1]:
			lines = append(lines, "- "+a[i])
			i++
		default:
			lines = append(lines, "+ "+b[j])
			j++
		}
	}
	return lines
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
