// Package suggest finds the known name that is closest to a mistyped one.
package suggest

import "strings"

// Of returns the element of names that is closest to name. It returns "" if each of them differs
// by more edits than the argument most. An edit inserts, removes or changes a byte. Case does not
// count.
func Of(name string, names []string, most int) string {
	nearest := ""
	name = strings.ToLower(name)
	for _, n := range names {
		if len(n)-len(name) > most || len(name)-len(n) > most {
			continue
		}
		if d := edits(strings.ToLower(n), name); d <= most && (nearest == "" || d < most) {
			nearest, most = n, d
		}
	}
	return nearest
}

// edits counts the bytes to insert, remove or change that make a into b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
