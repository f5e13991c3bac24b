package serversfile

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/suggest"
)

// Entry is one server of a servers file as it is written, with nothing expanded.
type Entry struct {
	Name string
	JSON []byte // without comments; it may hold secrets
}

// JSON returns data, the content of an MCP client's file, without comments and without commas behind the
// last element. The argument file is only for positions in errors. The error quotes nothing of data.
func JSON(data []byte, file string) ([]byte, error) {
	s := newSource(file, data)
	v, problem := s.json()
	if problem != nil {
		return nil, &Error{Position: s.position(problem.at), Reason: problem.text}
	}
	v.Standardize()
	return v.Pack(), nil
}

// Entries reads the servers of a servers file, in the order of the file. The argument file is
// only for positions in errors. Errors are those of Parse for the file as a whole, and for a
// repeated name.
func Entries(data []byte, file string) (all []Entry, err error) {
	r := &reader{source: newSource(file, data)}
	root, problem := r.source.parse()
	if problem != nil {
		r.problems = append(r.problems, *problem)
	} else if servers, ok := r.entries(root); ok {
		r.each(node{members: servers}, func(m member) {
			all = append(all, Entry{m.name, r.plain(nil, m.value)})
		})
	}
	return all, joined(r.errors(r.problems))
}

// entries finds the servers of the file. A file without servers is wrong as a whole.
func (r *reader) entries(root node) ([]member, bool) {
	if !r.want(root, object, "the file") {
		return nil, false
	}
	m, ok := root.get("mcpServers")
	if !ok {
		r.otherForm(root)
		return nil, false
	}
	r.each(root, func(m member) {
		if known := []string{"mcpServers", "$schema", "x-dormouse"}; !slices.Contains(known, m.name) {
			r.unknown(m, "", root, known)
		}
	})
	return m.value.members, r.want(m.value, object, "mcpServers")
}

// otherForm complains about a file that has no mcpServers. The file may belong to an MCP client, such as
// VS Code.
func (r *reader) otherForm(root node) {
	for _, m := range root.members {
		if suggest.Of(m.name, []string{"mcpServers"}, 2) != "" {
			r.fail(m.at, `no servers in the file: unknown key %q: did you mean "mcpServers"?`, m.name)
			return
		}
	}
	if len(root.members) == 0 {
		r.fail(root.at, `no "mcpServers" in the file: write {"mcpServers": {"name": {"command": "…"}}}`)
		return
	}
	r.fail(root.at, `no "mcpServers" in the file: if it is of another client, %s`, r.source.copies())
}

// copies says how to import a client's file into a servers file.
func (s source) copies() string {
	word := func(path string) string { // quotes a path for a shell
		if !strings.ContainsAny(path, " '\"\\$`&;()<>|*?#~") {
			return path
		}
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	const ours = "servers.json"
	if filepath.Base(s.file) != ours {
		return fmt.Sprintf("copy its servers into %s with dormouse import %s", ours, word(s.file))
	}
	to, from := word(s.file), word(filepath.Join(filepath.Dir(s.file), "servers.before.json"))
	return fmt.Sprintf("copy its servers with mv %s %s && dormouse import %s --servers %s", to, from, from, to)
}

// IsTOML reports whether a file is TOML, as that of Codex. The ending of its name decides. If the
// name has no ending, the first line that is neither empty nor a comment decides: TOML has a table
// header there, or a key followed by "=".
func IsTOML(data []byte, file string) bool {
	switch filepath.Ext(file) {
	case ".toml":
		return true
	case ".json", ".jsonc":
		return false
	}
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return regexp.MustCompile(`^(\[+[A-Za-z0-9_."' -]+\]+|[A-Za-z0-9_."'-]+\s*=.*)`).MatchString(line)
		}
	}
	return false
}

// unknown handles an unknown key of n. The argument what is the name for n in complaints. If a
// similar known key is missing from n, unknown complains, and returns that key. Below x-dormouse
// any unknown key is a mistake: it may be a restriction that only a later release has. Other
// unknown keys belong to MCP clients, and have no effect.
func (r *reader) unknown(m member, what string, n node, known []string) (meant string) {
	near := suggest.Of(m.name, known, 1+len(m.name)/6)
	if m.name == "cmd" && near == "cwd" {
		near = "command"
	}
	_, there := n.get(near)
	place := r.place(m.name, what == "")
	of, section, _ := strings.Cut(what, ": ")
	switch {
	case near != "" && !there:
		r.fail(m.at, "%sunknown key %q: did you mean %q?", prefix(what), m.name, near)
		return near
	case strings.HasPrefix(section, "x-dormouse"):
		r.fail(m.at, "%sunknown key %q under %s: %s", prefix(of), m.name, section, cmp.Or(place, Instead(m.name, known)))
	case place != "":
		r.warn(m.at, "%skey %q is ignored here: %s", prefix(what), m.name, place)
	default:
		of = fmt.Sprintf("%q", m.name)
		if what != "" {
			of += " of " + what
		}
		r.ignored = append(r.ignored, remark{at: m.at, text: of})
	}
	return ""
}

// place says where a key belongs that stands in a wrong place. It returns "" for an unknown key.
// Some keys belong to the file and to servers; ofFile prefers the file.
func (r *reader) place(key string, ofFile bool) string {
	s := serverReader{reader: r}
	of := func(place string, settings []setting) string {
		if slices.ContainsFunc(settings, func(s setting) bool { return s.key == key }) {
			return "move it under " + place
		}
		return ""
	}
	file := of("x-dormouse beside mcpServers", r.fileSettings(&File{}))
	server := cmp.Or(of("x-dormouse of the server", s.serverSettings()), of("x-dormouse.box of the server", s.boxSettings()))
	if ofFile {
		return cmp.Or(file, server)
	}
	return cmp.Or(server, file)
}

func prefix(what string) string {
	if what == "" {
		return ""
	}
	return what + ": "
}

// sayIgnored adds one warning that lists all ignored keys.
func (r *reader) sayIgnored() {
	all := inOrder(r.ignored)
	if len(all) == 0 {
		return
	}
	var names []string
	for _, k := range all {
		names = append(names, k.text)
	}
	keys := "1 key of another client is"
	if len(all) > 1 {
		keys = fmt.Sprintf("%d keys of other clients are", len(all))
	}
	r.warn(all[0].at, "%s ignored: %s", keys, strings.Join(names, ", "))
}

// FolderOf returns the folder for relative paths of a file: the file's own folder, or
// for a file in .vscode or .cursor the folder above.
func FolderOf(file string) string {
	folder := filepath.Dir(file)
	if base := filepath.Base(folder); base == ".vscode" || base == ".cursor" {
		return filepath.Dir(folder)
	}
	return folder
}
