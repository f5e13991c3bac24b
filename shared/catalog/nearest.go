package catalog

import "strings"

// Nearest returns the name in the file that is closest to name, "" if none is close. It
// includes rejected servers and ignores case.
func (c *Catalog) Nearest(name string) string {
	names := c.Names()
	for _, r := range c.rejected {
		names = append(names, r.Name)
	}
	return nearest(name, names, 1+len(name)/3)
}

// nearest returns the name that needs the fewest edits to become name, "" if all need
// more than least.
func nearest(name string, names []string, least int) string {
	nearest := ""
	for _, n := range names {
		if d := edits(strings.ToLower(n), strings.ToLower(name)); d <= least && (nearest == "" || d < least) {
			nearest, least = n, d
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
