package group

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// List is a list of one member: the result of tools/list, or of another method.
type List struct {
	Member string
	Result json.RawMessage
}

// Entry is a tool, prompt, resource or resource template of the group.
type Entry struct {
	Member string
	Own    string          // the entry's name, URI or URI template at the member
	Name   string          // the entry's name, URI or URI template in the group
	Raw    json.RawMessage // the entry as clients of the group get it
}

// kind returns two JSON keys of a list method: list is the key in the result under which the entries
// are, and name is the key in an entry that identifies the entry.
func kind(method string) (list, name string) {
	switch method {
	case wire.MethodToolsList:
		return "tools", "name"
	case wire.MethodPromptsList:
		return "prompts", "name"
	case wire.MethodResourcesList:
		return "resources", "uri"
	case MethodSkillsList:
		return "skills", "uri"
	default:
		return "resourceTemplates", "uriTemplate"
	}
}

// Merge returns the entries of all lists, in their order, under their names in the group. If plain is
// true, an entry keeps a name or URI that no other member has, except for URIs with a keptScheme.
func (n *Names) Merge(method string, plain bool, lists ...List) []Entry {
	list, name := kind(method)
	var all []Entry
	owners := map[string]int{}
	for _, l := range lists {
		seen := map[string]bool{}
		for raw := range wire.Elements(wire.Lookup(l.Result, list)) {
			own, ok := wire.String(wire.Lookup(raw, name))
			if !ok || seen[own] {
				continue
			}
			seen[own] = true
			owners[own]++
			all = append(all, Entry{Member: l.Member, Own: own, Raw: raw})
		}
	}
	for i, e := range all {
		v := View{Member: e.Member, Plain: plain && owners[e.Own] == 1}
		switch {
		case name != "name":
			all[i].Name = v.wrap(e.Own)
		case v.Plain:
			all[i].Name = e.Own
		default:
			all[i].Name = n.Join(e.Member, e.Own)
		}
		raw := v.apps(e.Raw, "_meta")
		if method == MethodSkillsList {
			raw = wire.ReplaceElements(raw, v.file, "resources")
		}
		if all[i].Name != e.Own {
			raw, _ = wire.Replace(raw, wire.AppendString(nil, all[i].Name), name)
		}
		all[i].Raw = raw
	}
	return all
}

// Result returns the result of a list method with these entries.
func Result(method string, entries []Entry) json.RawMessage {
	list, _ := kind(method)
	raws := make([][]byte, len(entries))
	for i, e := range entries {
		raws[i] = e.Raw
	}
	return slices.Concat([]byte(`{"`+list+`":`), wire.Array(raws), []byte{'}'})
}

// Makes reports whether a URI template (RFC 6570) can make a URI. It compares the literal
// parts, and takes any text for an expression.
func Makes(template, uri string) bool {
	for first := true; ; first = false {
		literal, rest, more := strings.Cut(template, "{")
		if first {
			var ok bool
			if uri, ok = strings.CutPrefix(uri, literal); !ok {
				return false
			}
		} else if !more {
			return strings.HasSuffix(uri, literal)
		} else {
			_, after, ok := strings.Cut(uri, literal)
			if !ok {
				return false
			}
			uri = after
		}
		if !more {
			return uri == ""
		}
		_, template, _ = strings.Cut(rest, "}")
	}
}
