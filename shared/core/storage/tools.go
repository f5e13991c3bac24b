package storage

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ToolFilter says which tools of a server a caller may see and call. An entry is the name of a tool, or
// a pattern in which each "*" stands for any text. Of the entries that fit a tool, the longest decides.
// A "*" does not count for the length, and a whole name decides before any pattern. Of two entries of
// the same length, the one in Deny decides. A tool that no entry fits is allowed, so the zero value
// allows all tools. The filter must also allow the name that FoldTool returns for the tool, unless
// Allow has exactly the tool's own name.
type ToolFilter struct {
	Allow []string `json:"a,omitempty"`
	Deny  []string `json:"d,omitempty"`
	// And, if not nil, is a second filter, which must allow a tool too.
	And *ToolFilter `json:"n,omitempty"`
	// Says has the descriptions that replace those of the server, by the names of the tools.
	Says map[string]string `json:"s,omitempty"`
}

// MaxSays bounds the names and texts of ToolFilter.Says together, in bytes: the [Address] of each
// request for a list of tools has them.
const MaxSays = 16 << 10

// IsZero reports whether the filter allows all tools and changes none.
func (f ToolFilter) IsZero() bool { return len(f.Deny) == 0 && f.And == nil && len(f.Says) == 0 }

// Allows reports whether the caller may see and call a tool.
func (f ToolFilter) Allows(tool string) bool {
	may := f.allows(tool, same) && (slices.Contains(f.Allow, tool) || f.allows(FoldTool(tool), FoldTool))
	return may && (f.And == nil || f.And.Allows(tool))
}

// allows applies Deny and Allow to the converted name of a tool. It converts each entry too.
func (f ToolFilter) allows(tool string, convert func(string) string) bool {
	denied := nearest(f.Deny, tool, convert)
	return denied < 0 || denied < nearest(f.Allow, tool, convert)
}

func same(name string) string { return name }

// FoldTool returns a form of a name that is the same for all names which a lenient server may
// take for one tool. Case, "-" and "_", and fullwidth letters make no difference, and spaces and
// invisible characters are left out. Rules for tools are compared in this form, too.
func FoldTool(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError || r == ' ' || !unicode.IsPrint(r):
			return -1
		case '！' <= r && r <= '～':
			r -= '！' - '!'
		}
		if r == '-' {
			return '_'
		}
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, name)
}

// nearest returns a number that grows with the length of the longest entry that fits a
// tool, -1 for none.
func nearest(entries []string, tool string, convert func(string) string) (length int) {
	length = -1
	for _, entry := range entries {
		switch entry = convert(entry); {
		case entry == tool:
			return len(tool) + 1
		case fits(entry, tool):
			length = max(length, len(entry)-strings.Count(entry, "*"))
		}
	}
	return length
}

func fits(pattern, tool string) bool {
	part, rest, open := strings.Cut(pattern, "*")
	tool, ok := strings.CutPrefix(tool, part)
	if !open || !ok {
		return ok && tool == ""
	}
	for {
		if part, rest, open = strings.Cut(rest, "*"); !open {
			return strings.HasSuffix(tool, part)
		}
		if _, tool, ok = strings.Cut(tool, part); !ok {
			return false
		}
	}
}
