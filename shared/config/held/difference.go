package held

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/dormouse-mcp/dormouse/shared/config/difference"
)

// Kinds of a [Change].
const (
	New     = "new"
	Changed = "changed"
	Gone    = "gone"
)

// Change says how a tool differs from an earlier version of it.
type Change struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // New, Changed or Gone
	Hash string `json:"hash"` // of the later version; "" if it is Gone
	// Marked reports that something in the later version looks like an instruction to a model,
	// or hides text.
	Marked bool   `json:"marked,omitempty"`
	Parts  []Part `json:"parts"` // the members that differ, in order of Path
}

// Part is one JSON member that differs between two versions of a tool.
type Part struct {
	Path  string `json:"path"`  // the keys that lead to it, as in inputSchema.properties.city.description
	Words []Word `json:"words"` // both versions of it, word by word
}

// Word is a piece of text: some words and the spaces between them.
type Word struct {
	Text   string `json:"text"`             // may have any characters; see Visible
	Op     string `json:"op,omitempty"`     // "+" only the later version has it, "-" only the earlier one, "" both
	Marked bool   `json:"marked,omitempty"` // it looks like an instruction to a model, or hides text
}

// Difference compares two lists of tools of one server, each tool as the server wrote it. It
// returns a Change for each tool that is not the same, in order of the names.
func Difference(was, is []json.RawMessage) []Change {
	before, after := byName(was), byName(is)
	changes := []Change{}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] == "" {
			changes = append(changes, Change{Name: name, Kind: Gone, Parts: []Part{}})
		}
	}
	for name, t := range after {
		if before[name] == "" || !same(before[name], t) {
			changes = append(changes, changeOf(name, before[name], t))
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	return changes
}

func byName(tools []json.RawMessage) map[string]tool {
	all := map[string]tool{}
	for _, t := range tools {
		if name, ok := nameOf(tool(t)); ok && all[name] == "" {
			all[name] = tool(t)
		}
	}
	return all
}

// changeOf compares two versions of a tool. For a new tool, the earlier version is "".
func changeOf(name string, was, is tool) Change {
	c := Change{Name: name, Kind: Changed, Hash: hashOf(is), Parts: []Part{}}
	if was == "" {
		c.Kind = New
	}
	before, after := members(was), members(is)
	paths := maps.Clone(before)
	maps.Copy(paths, after)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if before[path] == after[path] {
			continue
		}
		part := Part{path, words(before[path], after[path])}
		// The server has chosen the keys in path, so they may hide an instruction, too.
		c.Marked = c.Marked || len(suspicious(path)) > 0 || slices.ContainsFunc(part.Words, func(w Word) bool { return w.Marked })
		c.Parts = append(c.Parts, part)
	}
	return c
}

// mostMembers bounds the members of a tool that are compared one by one.
const mostMembers = 2000

// members returns the values in a tool by their paths. Strings are as they are, and other values are
// JSON.
func members(t tool) map[string]string {
	all := map[string]string{}
	var v any
	if t == "" || json.Unmarshal([]byte(t), &v) != nil {
		return all
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		join := func(key string) string { return strings.TrimPrefix(path+"."+key, ".") }
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				walk(join(key), value)
			}
			if len(v) == 0 {
				all[path] = "{}"
			}
		case []any:
			for i, value := range v {
				walk(join(strconv.Itoa(i)), value)
			}
			if len(v) == 0 {
				all[path] = "[]"
			}
		case string:
			all[path] = v
		default:
			all[path] = fmt.Sprint(v)
		}
	}
	walk("", v)
	if len(all) > mostMembers { // too many to compare one by one: the whole tool counts as one text
		return map[string]string{"": string(canonical(t))}
	}
	return all
}

// words compares two texts word by word, and marks what is suspicious in the later one.
func words(was, is string) []Word {
	var out []Word
	at := 0 // offset in the later text
	spans := suspicious(is)
	say := func(op, text string) {
		marked := false
		if op != "-" {
			end := at + len(text)
			marked = slices.ContainsFunc(spans, func(s span) bool { return s.from < end && at < s.to })
			at = end
		}
		if n := len(out) - 1; n >= 0 && out[n].Op == op && out[n].Marked == marked {
			out[n].Text += text
			return
		}
		out = append(out, Word{Text: text, Op: op, Marked: marked})
	}
	difference.Of(split(was), split(is), say)
	return out
}

// split returns the words of a text, and the spaces between them.
func split(text string) (words []string) {
	start, space := 0, false
	for i, r := range text {
		is := unicode.IsSpace(r)
		if space != is && i > start {
			words = append(words, text[start:i])
			start = i
		}
		space = is
	}
	if start < len(text) {
		words = append(words, text[start:])
	}
	return words
}
