package catalog

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/nearest"
)

// form is the way in which a kind of file lists its servers. Its text is the key that
// holds them.
type form string

const (
	mcpServers     form = "mcpServers"      // Claude, Cursor, Windsurf, Gemini, and dormouse
	vscodeServers  form = "servers"         // .vscode/mcp.json, and settings.json below "mcp"
	contextServers form = "context_servers" // Zed
	codexServers   form = "mcp_servers"     // Codex
	registryServer form = "server.json"     // of the official registry: one server
	bareServers    form = ""                // a map of servers by name, with nothing around it
)

// forms returns the forms that a top-level key identifies, in the order in which the
// reader looks for them.
func forms() []form { return []form{mcpServers, vscodeServers, contextServers, codexServers} }

// catalog reads the whole file.
func (r *reader) catalog(root node, c *Catalog) {
	if !r.want(root, object, "the file") {
		return
	}
	roots := r.additionsOfFile(root, c)
	if servers, ok := r.entries(root); ok {
		r.servers(servers, c, roots)
		r.withoutRejected(c)
	}
}

// entries finds the servers of the file, and its form. A file without servers is wrong
// as a whole.
func (r *reader) entries(root node) ([]member, bool) {
	if m, ok := root.get("mcp"); ok { // settings.json of VS Code
		if inside, ok := m.value.get(string(vscodeServers)); ok && inside.value.shape == object {
			r.form = vscodeServers
			r.readInputs(m.value)
			return inside.value.members, true
		}
	}
	for _, f := range forms() {
		if m, ok := root.get(string(f)); ok {
			r.form = f
			r.top(root)
			return m.value.members, r.want(m.value, object, string(f))
		}
	}
	if found, ok := r.registry(root); ok {
		r.form = registryServer
		return found, true
	}
	if m, ok := root.get("command"); ok && m.value.shape == text { // as for code --add-mcp
		name, ok := root.get("name")
		if !ok || name.value.shape != text {
			r.fail(root.at, `one server without a name: write {"mcpServers": {"name": {"command": "…"}}}`)
			return nil, false
		}
		r.readInputs(root)
		return []member{{name: name.value.text, at: name.value.at, value: root}}, true
	}
	return r.bare(root)
}

// top checks the keys beside the servers. It ignores the many other keys in the settings
// file of an editor.
func (r *reader) top(root node) {
	known := []string{string(r.form), "$schema", "x-dormouse"}
	if r.form == vscodeServers {
		known = append(known, "inputs")
		r.readInputs(root)
	}
	settings := r.form == contextServers || r.form == codexServers
	r.each(root, func(m member) {
		if !slices.Contains(known, m.name) && !settings {
			r.unknown(m, "", root, known)
		}
	})
}

// bare reads a file whose top-level keys are the names of servers.
func (r *reader) bare(root node) ([]member, bool) {
	var all []member
	plain := false
	for _, m := range root.members {
		if m.name == "$schema" || m.name == "x-dormouse" {
			continue
		}
		for _, key := range []string{"command", "url", "serverUrl", "httpUrl", "x-dormouse"} {
			_, has := m.value.get(key)
			plain = plain || has
		}
		all = append(all, m)
	}
	r.form = bareServers
	if plain && !slices.ContainsFunc(all, func(m member) bool { return m.value.shape != object }) {
		return all, true
	}
	const write = `no "mcpServers" in the file: write {"mcpServers": {"name": {"command": "…"}}}`
	for _, m := range root.members {
		for _, f := range forms() {
			if nearest.Of(m.name, []string{string(f)}, 2) != "" {
				r.fail(m.at, "no servers in the file: unknown key %q: did you mean %q?", m.name, f)
				return nil, false
			}
		}
	}
	r.fail(root.at, write)
	return nil, false
}

// readInputs reads the key inputs: the values for which VS Code asks its user.
func (r *reader) readInputs(n node) {
	m, ok := n.get("inputs")
	if !ok || m.value.shape != array {
		return
	}
	r.inputs = map[string]input{}
	for _, item := range m.value.items {
		id, _ := item.get("id")
		description, _ := item.get("description")
		password, _ := item.get("password")
		in := input{description: description.value.text, secret: password.value.on}
		if d, ok := item.get("default"); ok && d.value.shape == text {
			in.fallback, in.optional = d.value.text, true
		}
		r.inputs[id.value.text] = in
	}
}

// unknown handles an unknown key of n; what names n. If a similar known key is missing
// from n, the author probably meant that key. unknown then returns that key, and the
// server is not started without it. Below x-dormouse any unknown key is a mistake: it may
// be a guard that only a later release has. Other unknown keys are those of other clients,
// and have no effect.
func (r *reader) unknown(m member, what string, n node, known []string) (meant string) {
	near := nearest.Of(m.name, known, 1+len(m.name)/6)
	_, there := n.get(near)
	of, section, _ := strings.Cut(what, ": ")
	switch {
	case near != "" && !there:
		r.fail(m.at, "%sunknown key %q: did you mean %q?", prefix(what), m.name, near)
		return near
	case strings.HasPrefix(section, "x-dormouse"):
		r.fail(m.at, "%sunknown key %q under %s: %s", prefix(of), m.name, section, Instead(m.name, known))
	default:
		of = fmt.Sprintf("%q", m.name)
		if what != "" {
			of += " of " + what
		}
		r.ignored = append(r.ignored, remark{at: m.at, text: of})
	}
	return ""
}

func prefix(what string) string {
	if what == "" {
		return ""
	}
	return what + ": "
}

// sayIgnored adds one warning with all keys of other clients that have no effect.
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
