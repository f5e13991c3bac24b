package serversfile

import (
	"maps"
	"slices"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Group is several servers at one address, from x-dormouse.groups.
type Group struct {
	Servers []string `json:"servers,omitempty"` // nil: all; names that no server has are allowed
	Plain   bool     `json:"plain,omitempty"`   // the file has names "plain": a tool that only one server has gets no prefix
	Search  bool     `json:"search,omitempty"`  // the file has tools "search": clients get tools that search for tools, in place of all tools
}

// AllServers is the name, in the servers file, of the group at /mcp. This group exists
// even if the file has no entry for it.
const AllServers = "all"

// Group returns a group by its name in the file. ok is also true for [AllServers] without an entry.
func (c *File) Group(name string) (g Group, ok bool) {
	g, ok = c.groups[name]
	return g, ok || name == AllServers
}

// Groups returns the names of all groups, sorted.
func (c *File) Groups() []string {
	names := slices.Sorted(maps.Keys(c.groups))
	if _, ok := c.groups[AllServers]; !ok {
		names = append([]string{AllServers}, names...)
	}
	slices.Sort(names)
	return names
}

// groups reads x-dormouse.groups. It leaves out a group with a mistake.
func (r *reader) groups(m member) map[string]Group {
	if !r.want(m.value, object, "x-dormouse.groups") {
		return nil
	}
	all := map[string]Group{}
	r.each(m.value, func(m member) {
		what := "x-dormouse.groups: " + m.name
		if !validName(m.name) {
			r.fail(m.at, "%s: a name of a group has letters, digits, \".\", \"_\" and \"-\", at most 64 of them", what)
			return
		}
		before := len(r.problems)
		var g Group
		r.object(section{name: "the file: " + what, label: what + ": ", nulls: true, settings: r.groupSettings(&g)}).read(m, what)
		if len(r.problems) == before {
			all[m.name] = g
		}
	})
	return all
}

// ToolFilter says which tools of a server are offered at all, and how: x-dormouse.tools.
// An entry of Allow and Deny is a name, or a pattern in which "*" stands for any text. If
// Allow is not empty, only tools that match it are offered. If a tool matches both lists,
// the longest matching entry decides, and Deny wins between equally long ones.
type ToolFilter struct {
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	// Descriptions replace the server's descriptions of its tools, by the names of the
	// tools.
	Descriptions map[string]string `json:"descriptions,omitempty"`
	// Pin is the setting pin, nil if the file says nothing; see [Server.Pin].
	Pin *bool `json:"pin,omitempty"`
}

func (f ToolFilter) isZero() bool {
	return len(f.Allow) == 0 && len(f.Deny) == 0 && len(f.Descriptions) == 0 && f.Pin == nil
}

// Filter converts f. If Allow limits the tools, the result also denies "*": all others.
func (f ToolFilter) Filter() storage.ToolFilter {
	filter := storage.ToolFilter{Allow: f.Allow, Deny: f.Deny, Says: f.Descriptions}
	if len(f.Allow) > 0 && !slices.Contains(f.Allow, "*") {
		filter.Deny = append([]string{"*"}, f.Deny...)
	}
	return filter
}
