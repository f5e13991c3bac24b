package serversedit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Source is the configuration file of another MCP client.
type Source struct {
	Servers []Theirs // in the order of the file; in a TOML file, sorted by name
	Inputs  []Input
	Folder  string   // folder that relative paths in the file refer to; "" if unknown
	ours    []member // members of x-dormouse at the root of the file
}

// Theirs is a server in another client's file.
type Theirs struct {
	Name string // name in the file
	JSON []byte // entry in the form of mcpServers; it may contain secrets
	Why  string // why the server cannot be hosted even if all variables are set; "" if it can
}

// Input is a value for `${input:ID}`, which VS Code asks its user for. HasDefault distinguishes an
// empty Default from none.
type Input struct {
	ID, Description, Default string
	HasDefault, Secret       bool
}

// Read parses a client's file. It knows the forms of Claude and Cursor (mcpServers), VS Code
// (servers), Zed (context_servers) and Codex (TOML). It also accepts a server.json of the registry,
// a map of servers by name, also without its braces, and a single server with its name. The argument path is for messages; an
// absolute one also leads to [Source].Folder. If dollar is true, $NAME is a variable, as in files of
// Gemini. Errors have the place of the mistake, and quote no value.
func Read(text []byte, path string, dollar bool) (Source, error) {
	text, err := asJSON(text, path)
	if err != nil {
		return Source{}, err
	}
	src := Source{}
	project := false // whether `${workspaceFolder}` stands for Folder, as in a project's file; in a user's, for no certain folder
	if filepath.IsAbs(path) {
		src.Folder = serversfile.FolderOf(path)
		home, _ := os.UserHomeDir() // "" without a home
		project = src.Folder != filepath.Dir(path) && src.Folder != home
	}
	form, servers := find(text)
	switch form {
	case mcpServers: // unlike find, Entries returns an error for repeated names
		entries, err := serversfile.Entries(text, path)
		if err != nil {
			return src, err
		}
		for _, e := range entries {
			src.Servers = append(src.Servers, Theirs{Name: e.Name, JSON: e.JSON})
		}
	case registryServer:
		name, entry, err := Published(text, func(string) (string, bool) { return "", false })
		s := Theirs{Name: name, JSON: entry.JSON()}
		if err != nil {
			s.Why = err.Error()
		}
		src.Servers = []Theirs{s}
	case noServers:
		return src, fmt.Errorf("%s has no servers in a form that import knows: write {\"mcpServers\": {\"name\": {\"command\": \"…\"}}}", path)
	default:
		src.Inputs = inputs(text)
		if form != aloneServer {
			src.ours = object(valueOf(object(text), "x-dormouse"))
		}
		for _, m := range servers {
			src.Servers = append(src.Servers, Theirs{Name: m.name, JSON: form.entry(m.value)})
		}
	}
	for i, s := range src.Servers {
		s.JSON = src.expand(s.JSON, project, dollar)
		if s.Why == "" {
			s.Why = s.wrong(path)
		}
		src.Servers[i] = s
	}
	return src, nil
}

// asJSON returns the text of a file as JSON without comments. For TOML, the order of keys is lost.
func asJSON(text []byte, path string) ([]byte, error) {
	if !serversfile.IsTOML(text, path) {
		if bytes.HasPrefix(bytes.TrimSpace(text), []byte(`"`)) { // as many READMEs print a server
			text = slices.Concat([]byte("{"), text, []byte("\n}"))
		}
		return serversfile.JSON(text, path)
	}
	var all map[string]any
	if err := toml.Unmarshal(bytes.TrimPrefix(text, []byte("\ufeff")), &all); err != nil {
		var wrong *toml.DecodeError
		if !errors.As(err, &wrong) {
			return nil, fmt.Errorf("%s: not TOML", path) // the error itself may quote a value
		}
		line, column := wrong.Position()
		what, _, _ := strings.Cut(strings.TrimPrefix(wrong.Error(), "toml: "), ": strconv.") // an error of strconv would quote the value
		if strings.HasPrefix(what, "expected keyword") {
			what = "write text in double quotes, a number, true or false"
		}
		return nil, fmt.Errorf("%s:%d:%d: not TOML: %s", path, line, column, what)
	}
	text, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("%s: not TOML: a number is infinite", path)
	}
	return text, nil
}

// form is the way in which a file lists its servers: the name of the key that has them, or a word for
// a file without such a key.
type form string

const (
	mcpServers     form = "mcpServers"      // Claude, Cursor, Windsurf, Gemini, and dormouse
	vscodeServers  form = "servers"         // .vscode/mcp.json, and settings.json below "mcp"
	contextServers form = "context_servers" // Zed
	codexServers   form = "mcp_servers"     // Codex
	registryServer form = "server.json"     // a server.json of the official registry, with one server
	bareServers    form = "bare"            // a map of servers by name, without a key around it
	aloneServer    form = "alone"           // one server with its name, as in code --add-mcp
	noServers      form = "none"
)

// find returns the form of a file, and its servers.
func find(text []byte) (form, []member) {
	root := object(text)
	if _, servers, ok := get(object(valueOf(root, "mcp")), vscodeServers); ok {
		return vscodeServers, servers
	}
	for _, f := range []form{mcpServers, vscodeServers, contextServers, codexServers} {
		if _, servers, ok := get(root, f); ok {
			return f, servers
		}
	}
	if isPublished(text) {
		return registryServer, nil
	}
	var name, command string
	if json.Unmarshal(valueOf(root, "command"), &command) == nil {
		if json.Unmarshal(valueOf(root, "name"), &name) != nil {
			return noServers, nil
		}
		return aloneServer, []member{{name, text}}
	}
	var all []member
	plain := false
	for _, m := range root {
		if m.name == "$schema" || m.name == "x-dormouse" {
			continue
		}
		entry := object(m.value)
		if entry == nil {
			return noServers, nil
		}
		for _, key := range []string{"command", "url", "serverUrl", "httpUrl", "x-dormouse"} {
			plain = plain || valueOf(entry, key) != nil
		}
		all = append(all, m)
	}
	if !plain {
		return noServers, nil
	}
	return bareServers, all
}

// get returns f, and the members of the object at the key f. ok is false if there is no object. For
// mcpServers ok is true for any value, so that [serversfile.Entries] reports a wrong one.
func get(root []member, f form) (form, []member, bool) {
	value := valueOf(root, string(f))
	return f, object(value), len(value) > 0 && (value[0] == '{' || f == mcpServers)
}

// entry converts an entry to the form of mcpServers. In older files of Zed, command is an object
// with path, args and env. Codex has two timeouts beside the command, which become members of
// x-dormouse.
func (f form) entry(value json.RawMessage) []byte {
	var out, ours []member
	for _, m := range object(value) {
		switch {
		case f == contextServers && m.name == "command" && m.value[0] == '{':
			for _, part := range object(m.value) {
				if part.name == "path" {
					part.name = "command"
				}
				out = append(out, part)
			}
		case f == codexServers && (m.name == "startup_timeout_sec" || m.name == "tool_timeout_sec"):
			ours = append(ours, m)
		default:
			out = append(out, m)
		}
	}
	if ours != nil {
		i := slices.IndexFunc(out, func(m member) bool { return m.name == "x-dormouse" })
		if i < 0 {
			i, out = len(out), append(out, member{name: "x-dormouse"})
		}
		out[i].value = encode(append(object(out[i].value), ours...))
	}
	if out == nil {
		return value // no object, or an empty one: the method wrong later says so
	}
	return encode(out)
}

// inputs returns the values that VS Code asks its user for.
func inputs(text []byte) (all []Input) {
	type asked struct {
		ID, Description string
		Default         any
		Password        bool
	}
	var file struct {
		Inputs []asked
		MCP    struct{ Inputs []asked }
	}
	_ = json.Unmarshal(text, &file) // members of a wrong type are ignored
	for _, in := range append(file.MCP.Inputs, file.Inputs...) {
		value, ok := in.Default.(string)
		all = append(all, Input{in.ID, in.Description, value, ok, in.Password})
	}
	return all
}

// expand replaces variables in an entry that mean nothing in the servers file: inputs of VS Code, if
// project is set, the project's folder, and if dollar is set, $NAME.
func (src Source) expand(entry []byte, project, dollar bool) []byte {
	text := string(entry)
	inside := func(s string) string { // escapes a text for a JSON string
		quoted := jsonedit.Encode(s)
		return string(quoted[1 : len(quoted)-1])
	}
	if project && src.Folder != "" {
		text = strings.ReplaceAll(text, "${workspaceFolder}", inside(src.Folder))
		text = strings.ReplaceAll(text, "${workspaceFolderBasename}", inside(filepath.Base(src.Folder)))
	}
	if dollar {
		text = regexp.MustCompile(`\$([A-Za-z_][A-Za-z0-9_]*)`).ReplaceAllString(text, "$${$1}")
	}
	for _, in := range src.Inputs {
		variable := serversfile.InputVariable(in.ID)
		if in.HasDefault && !strings.Contains(in.Default, "}") {
			variable += ":-" + inside(in.Default)
		}
		text = strings.ReplaceAll(text, "${input:"+inside(in.ID)+"}", "${"+variable+"}")
	}
	return []byte(text)
}

// wrong returns why a server cannot be hosted even if all variables are set, or "" if it can.
func (s Theirs) wrong(path string) string {
	set := func(string) (string, bool) { return "http://set", true } // a valid value for every variable, also where the file needs a URL
	parse := serversfile.Parse
	if filepath.IsAbs(path) {
		parse = serversfile.ParseHere
	}
	c, _, err := parse(fileOf(ValidName(s.Name), s.JSON), filepath.Join(filepath.Dir(path), "servers.json"), set)
	if err != nil {
		return err.Error()
	}
	for _, r := range c.Rejected() {
		return r.Cause()
	}
	return ""
}

// fileOf returns a servers file with one server.
func fileOf(name string, entry []byte) []byte {
	return encode([]member{{"mcpServers", encode([]member{{name, entry}})}})
}

type member struct {
	name  string
	value json.RawMessage
}

// object returns the members of a JSON object in order, or nil for other values. For a repeated
// name it returns the last value.
func object(value json.RawMessage) (all []member) {
	_ = jsonedit.Members(value, func(key string, value json.RawMessage) error {
		all = append(all, member{key, value})
		return nil
	}) // value is valid JSON, so an error means that it is no object
	return all
}

// valueOf returns the value of the member with this name, or nil.
func valueOf(of []member, name string) json.RawMessage {
	for _, m := range of {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

func encode(of []member) json.RawMessage {
	out := []byte{'{'}
	for i, m := range of {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, jsonedit.Encode(m.name)...), ':'), m.value...)
	}
	return append(out, '}')
}
