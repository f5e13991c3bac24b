package clientfile

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
)

// Remove removes from the text of the client's file the entries that [Client.Merge] puts there for
// an endpoint. An entry is removed if it has the URL base/mcp, or the name NAME and the URL
// base/NAME/mcp. The argument wanted has the names of entries to remove, nil for all. The error
// quotes no value.
func (c Client) Remove(text []byte, base string, wanted []string) (out []byte, removed []string, err error) {
	ours := func(name string, urls ...string) bool {
		base := strings.TrimSuffix(base, "/")
		reaches := slices.Contains(urls, base+"/"+name+"/mcp") || slices.Contains(urls, base+"/mcp")
		return reaches && (wanted == nil || slices.Contains(wanted, name))
	}
	switch c.format {
	case tomlFile:
		return removeTOML(text, ours)
	case yamlFile:
		out, removed = removeYAML(text, ours)
		return out, removed, nil
	default:
		return c.removeJSON(text, ours)
	}
}

func (c Client) removeJSON(text []byte, ours func(string, ...string) bool) (out []byte, removed []string, err error) {
	if len(strings.TrimSpace(string(text))) == 0 {
		return text, nil, nil
	}
	section, ok, err := jsonedit.Get(text, c.keys...)
	if err != nil || !ok {
		return text, nil, err
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(section, &all) != nil {
		return nil, nil, errors.New("its servers are no JSON object; take them out by hand")
	}
	entries := map[string]map[string]json.RawMessage{}
	for name, entry := range all {
		var one map[string]json.RawMessage
		if json.Unmarshal(entry, &one) == nil { // an entry that is no object is not one that Merge wrote
			entries[name] = one
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		var urls []string
		for _, key := range []string{"url", "httpUrl", "serverUrl"} {
			var at string
			if json.Unmarshal(entries[name][key], &at) == nil {
				urls = append(urls, at)
			}
		}
		var args []string
		if json.Unmarshal(entries[name]["args"], &args) == nil && slices.Contains(args, "mcp-remote") {
			urls = append(urls, args...)
		}
		if !ours(name, urls...) {
			continue
		}
		if text, err = jsonedit.Delete(text, slices.Concat(c.keys, []string{name})...); err != nil {
			return nil, nil, err
		}
		removed = append(removed, name)
	}
	return text, removed, nil
}

// removeTOML takes out the tables of servers, with those below them. removeTOML checks that
// nothing else has changed.
func removeTOML(text []byte, ours func(string, ...string) bool) (out []byte, removed []string, err error) {
	for {
		name, before, err := nextTOML(text, ours)
		if err != nil || name == "" {
			return text, removed, err
		}
		own := tableOf(name)
		var kept, held strings.Builder // held is comments and empty lines, which may belong to the next table
		inside := false
		for line := range strings.Lines(string(text)) {
			plain := strings.TrimSpace(line)
			switch {
			case own.MatchString(line):
				inside = true
				held.Reset()
			case inside && anyTable.MatchString(line):
				inside = false
				kept.WriteString(held.String())
				kept.WriteString(line)
			case !inside:
				kept.WriteString(line)
			case plain == "" || plain[0] == '#':
				held.WriteString(line)
			default:
				held.Reset()
			}
		}
		text = []byte(kept.String())
		if inside {
			text = []byte(strings.TrimLeft(strings.TrimRight(kept.String(), "\n")+"\n"+strings.TrimLeft(held.String(), "\n"), "\n"))
		}
		after, is, err := readTOML(text, name)
		if err != nil || is != nil || !reflect.DeepEqual(before, after) {
			return nil, nil, errors.New("dormouse cannot change the form in which the file has it; take it out by hand")
		}
		removed = append(removed, name)
	}
}

// nextTOML returns the first server for which the function ours returns true, "" for none, and the
// content of the file without it.
func nextTOML(text []byte, ours func(string, ...string) bool) (name string, others map[string]any, err error) {
	all, _, err := readTOML(text, "")
	if err != nil {
		return "", nil, err
	}
	servers, _ := all["mcp_servers"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		one, _ := servers[name].(map[string]any)
		if url, _ := one["url"].(string); ours(name, url) {
			others, _, err = readTOML(text, name)
			return name, others, err
		}
	}
	return "", nil, nil
}

// removeYAML removes servers from goose's file, and leaves all that [extensions] cannot read.
func removeYAML(text []byte, ours func(string, ...string) bool) (out []byte, removed []string) {
	lines := strings.SplitAfter(string(text), "\n")
	begin, all, err := extensions(lines)
	if err != nil {
		return text, nil
	}
	uri := regexp.MustCompile(`^\s*uri:\s*["']?([^"'\s]+)`)
	for _, e := range slices.Backward(all) {
		var urls []string
		for _, line := range lines[e.from:e.to] {
			if m := uri.FindStringSubmatch(line); m != nil {
				urls = append(urls, m[1])
			}
		}
		if ours(e.name, urls...) {
			lines = slices.Delete(lines, e.from, e.to)
			removed = append(removed, e.name)
		}
	}
	if removed != nil && len(removed) == len(all) && strings.TrimSpace(lines[begin]) == "extensions:" { // Merge adds the line to a file without it
		lines = slices.Delete(lines, begin, begin+1)
	}
	slices.Reverse(removed) // in the order of the file
	return []byte(strings.Join(lines, "")), removed
}
