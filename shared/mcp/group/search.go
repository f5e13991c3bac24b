package group

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Search returns the tools that fit a query best, at most limit. A word of the query counts
// most in a tool's name, less in its title, and least in its description. A query without
// words fits all tools.
func Search(tools []Entry, query string, limit int) []Entry {
	wanted := wordsOf(query)
	type scored struct {
		tool  Entry
		score int
	}
	var found []scored
	for _, t := range tools {
		score := 0
		for _, of := range []struct {
			text   string
			weight int
		}{{t.Name, 8}, {textOf(t, "title"), 4}, {textOf(t, "description"), 2}} {
			words, weight := wordsOf(of.text), of.weight
			for _, w := range wanted {
				switch {
				case slices.Contains(words, w):
					score += 2 * weight
				case len(w) >= 3 && slices.ContainsFunc(words, func(of string) bool { return strings.HasPrefix(of, w) || len(of) >= 4 && strings.HasPrefix(w, of) }):
					score += weight
				}
			}
		}
		if score > 0 || len(wanted) == 0 {
			found = append(found, scored{t, score})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return cmp.Compare(b.score, a.score) })
	best := make([]Entry, 0, limit)
	for _, f := range found[:min(len(found), limit)] {
		best = append(best, f.tool)
	}
	return best
}

func textOf(t Entry, key string) string {
	text, _ := wire.String(wire.Lookup(t.Raw, key))
	return text
}

// wordsOf returns the words of a text in lower case. A capital letter after a small one
// begins a word, as in the names of tools.
func wordsOf(text string) []string {
	var b strings.Builder
	small := false
	for _, c := range text {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) || unicode.IsUpper(c) && small {
			b.WriteByte(' ')
		}
		if unicode.IsLetter(c) || unicode.IsDigit(c) {
			b.WriteRune(unicode.ToLower(c))
		}
		small = unicode.IsLower(c)
	}
	return strings.Fields(b.String())
}
