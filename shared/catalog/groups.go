package catalog

import (
	"maps"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// Group is one address of several servers, from x-dormouse.groups.
type Group struct {
	Servers   []string `json:"servers,omitempty"`   // nil: all; names that no server has are allowed
	Separator string   `json:"separator,omitempty"` // between the names of a server and its tool, "" for "__"
	Plain     bool     `json:"plain,omitempty"`     // names: "plain"
	Search    bool     `json:"search,omitempty"`    // tools: "search"
}

// AllServers is the name, in the servers file, of the group at /mcp. This group exists
// even if the file has no entry for it.
const AllServers = "all"

// Group returns a group by its name in the file.
func (c *Catalog) Group(name string) (Group, bool) {
	g, ok := c.groups[name]
	return g, ok || name == AllServers
}

// Groups returns the names of all groups, sorted.
func (c *Catalog) Groups() []string {
	names := slices.Sorted(maps.Keys(c.groups))
	if _, ok := c.groups[AllServers]; !ok {
		names = append([]string{AllServers}, names...)
	}
	slices.Sort(names)
	return names
}

// maxSeparator is the longest separator in bytes. A longer one would leave too little
// room for the names of tools.
const maxSeparator = 4

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
		if g := r.group(m.value, what); len(r.problems) == before {
			all[m.name] = g
		}
	})
	return all
}

func (r *reader) group(n node, what string) (g Group) {
	if !r.want(n, object, what) {
		return g
	}
	r.each(n, func(m member) {
		switch m.name {
		case "servers":
			g.Servers = r.names(m.value, what+": servers")
		case "separator":
			fits := strings.Trim(m.value.text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
			if g.Separator = m.value.text; m.value.shape != text || g.Separator == "" || len(g.Separator) > maxSeparator || !fits {
				r.fail(m.value.at, "%s: separator must be one to %d letters, digits, \"_\" or \"-\"", what, maxSeparator)
			}
		case "names":
			g.Plain = r.either(m, what, "prefixed", "plain")
		case "tools":
			g.Search = r.either(m, what, "all", "search")
		default:
			r.unknown(m, "the file: "+what, n, []string{"servers", "separator", "names", "tools"})
		}
	})
	return g
}

// either reads one of two words, and reports whether it is the second one.
func (r *reader) either(m member, what, first, second string) bool {
	if m.value.shape != text || m.value.text != first && m.value.text != second {
		r.fail(m.value.at, "%s: %s must be %q or %q", what, m.name, first, second)
	}
	return m.value.text == second
}

// names reads a list of texts that are not empty.
func (r *reader) names(n node, what string) []string {
	if !r.want(n, array, what) {
		return nil
	}
	names := []string{}
	for _, item := range n.items {
		if item.shape != text || item.text == "" {
			r.fail(item.at, "%s must be a list of names", what)
			continue
		}
		names = append(names, item.text)
	}
	return names
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
}

func (f ToolFilter) isZero() bool {
	return len(f.Allow) == 0 && len(f.Deny) == 0 && len(f.Descriptions) == 0
}

// Filter returns f as the rule for callers. If only some tools are allowed, all others are
// denied.
func (f ToolFilter) Filter() session.ToolFilter {
	filter := session.ToolFilter{Allow: f.Allow, Deny: f.Deny, Says: f.Descriptions}
	if len(f.Allow) > 0 && !slices.Contains(f.Allow, "*") {
		filter.Deny = append([]string{"*"}, f.Deny...)
	}
	return filter
}

func (r *serverReader) tools(m member) {
	what := r.what + ": tools"
	if !r.want(m.value, object, what) {
		return
	}
	section := m.value
	r.each(section, func(m member) {
		switch m.name {
		case "allow":
			r.server.Tools.Allow = r.names(m.value, what+"."+m.name)
		case "deny":
			r.server.Tools.Deny = r.names(m.value, what+"."+m.name)
		case "descriptions":
			r.server.Tools.Descriptions = r.descriptions(m, what+".descriptions")
		default:
			r.unknown(m, r.what+": x-dormouse.tools", section, []string{"allow", "deny", "descriptions"})
		}
	})
}

// descriptions reads texts by the names of tools.
func (r *serverReader) descriptions(m member, what string) map[string]string {
	if !r.want(m.value, object, what) {
		return nil
	}
	texts, size := map[string]string{}, 0
	r.each(m.value, func(m member) {
		if m.value.shape != text || m.name == "" || strings.HasSuffix(m.name, "*") {
			r.fail(m.at, "%s: want the name of a tool and a text, as in {\"search\": \"Searches our wiki\"}", what)
			return
		}
		texts[m.name] = m.value.text
		size += len(m.name) + len(m.value.text)
	})
	if size > session.MaxSays {
		r.fail(m.at, "%s: the names and texts have %d bytes, more than %d; shorten them", what, size, session.MaxSays)
	}
	return texts
}
