// Package difference compares two texts that are cut into words or lines.
package difference

// mostCells bounds the table of one comparison: the number of pieces of one text times that of the
// other.
const mostCells = 1 << 21

// Of compares a with b, and calls the function say for each piece, in order. The argument op is ""
// for a piece that both have, "-" if only a has it, and "+" if only b has it. Of finds the longest
// common subsequence if at most 1,447 pieces on each side lie between the common ends. A longer
// middle counts as replaced.
func Of(a, b []string, say func(op, piece string)) {
	first, last := 0, 0 // common pieces at both ends
	for first < min(len(a), len(b)) && a[first] == b[first] {
		first++
	}
	for last < min(len(a), len(b))-first && a[len(a)-1-last] == b[len(b)-1-last] {
		last++
	}
	for _, piece := range b[:first] {
		say("", piece)
	}
	middle(a[first:len(a)-last], b[first:len(b)-last], say)
	for _, piece := range b[len(b)-last:] {
		say("", piece)
	}
}

func middle(a, b []string, say func(op, piece string)) {
	if (len(a)+1)*(len(b)+1) > mostCells {
		for _, piece := range a {
			say("-", piece)
		}
		for _, piece := range b {
			say("+", piece)
		}
		return
	}
	longest := make([][]int32, len(a)+1)
	for i := range longest {
		longest[i] = make([]int32, len(b)+1)
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
			say("", b[j])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && longest[i+1][j] >= longest[i][j+1]:
			say("-", a[i])
			i++
		default:
			say("+", b[j])
			j++
		}
	}
}
