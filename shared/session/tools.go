package session

import "strings"

// ToolFilter says which tools of a server a caller may see and call. An entry is the name
// of a tool, or the beginning of names with "*" behind it. For each tool the longest entry
// counts, and a whole name before a beginning. A tool that no entry fits is allowed, so
// the zero value allows all tools.
type ToolFilter struct {
	Allow []string `json:"a,omitempty"`
	Deny  []string `json:"d,omitempty"`
	// And, if not nil, must allow a tool too.
	And *ToolFilter `json:"n,omitempty"`
}

// IsZero reports whether the filter allows all tools.
func (f ToolFilter) IsZero() bool { return len(f.Deny) == 0 && f.And == nil }

// Allows reports whether the caller may see and call a tool.
func (f ToolFilter) Allows(tool string) bool {
	return nearest(f.Deny, tool) <= nearest(f.Allow, tool) && (f.And == nil || f.And.Allows(tool))
}

// nearest returns a number that grows with the length of the longest entry that fits a
// tool, -1 for none.
func nearest(entries []string, tool string) (length int) {
	length = -1
	for _, entry := range entries {
		begin, open := strings.CutSuffix(entry, "*")
		switch {
		case entry == tool:
			return len(tool) + 1
		case open && strings.HasPrefix(tool, begin):
			length = max(length, len(begin))
		}
	}
	return length
}
