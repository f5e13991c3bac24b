package catalog

import (
	"errors"
	"slices"
	"strings"
)

// Raw is a servers file as it is written, with nothing expanded. Programs that copy
// servers from one file to another use it. [Parse] says what a file means.
type Raw struct {
	Servers []RawServer // in the order of the file
	Inputs  []RawInput  // that VS Code asks for
	// Path has the keys that lead to the servers: ["mcpServers"], ["mcp", "servers"], or
	// none for a file that has only servers. Editable reports whether a server can be
	// added at Path. It is false for TOML, and for a file that is one server with no key
	// around it.
	Path     []string
	Editable bool
	// Project reports that `${workspaceFolder}` is the folder of the project.
	Project bool
}

// RawServer is one server of a [Raw]. JSON is its entry without comments; the server of a
// server.json is already in the form of mcpServers. It may hold secrets.
type RawServer struct {
	Name string
	JSON []byte
	Position
}

// RawInput is a value `${input:ID}` that VS Code asks for. HasDefault tells an empty
// Default from none.
type RawInput struct {
	ID, Description, Default string
	HasDefault, Secret       bool
}

// ReadRaw reads the content of a servers file in the form of any client; file is its
// name, for positions in errors, and to tell TOML from JSON. getenv gives the values of
// variables in a server.json. Its errors are those of [Parse] for the file as a whole,
// for a repeated name, and for a server.json that cannot be hosted.
func ReadRaw(data []byte, file string, getenv Getenv) (*Raw, error) {
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	r := &reader{source: newSource(file, data), getenv: getenv}
	raw := &Raw{}
	root, problem := r.source.parse()
	if problem != nil {
		r.problems = append(r.problems, *problem)
	} else {
		r.raw(root, raw)
	}
	var wrong []error
	for _, e := range r.errors(r.problems) {
		wrong = append(wrong, e)
	}
	return raw, errors.Join(wrong...)
}

func (r *reader) raw(root node, raw *Raw) {
	if !r.want(root, object, "the file") {
		return
	}
	all, ok := r.entries(root)
	if !ok {
		return
	}
	command, _ := root.get("command")
	alone := r.form == bareServers && command.value.shape == text
	raw.Editable = !r.source.isTOML() && r.form != registryServer && !alone
	raw.Project = r.form == vscodeServers
	if r.form != bareServers {
		raw.Path = []string{string(r.form)}
	}
	if _, direct := root.get(string(r.form)); r.form == vscodeServers && !direct {
		raw.Path = []string{"mcp", string(r.form)}
	}
	for id, in := range r.inputs {
		raw.Inputs = append(raw.Inputs, RawInput{ID: id, Description: in.description, Default: in.fallback, HasDefault: in.optional, Secret: in.secret})
	}
	slices.SortFunc(raw.Inputs, func(a, b RawInput) int { return strings.Compare(a.ID, b.ID) })
	r.each(node{members: all}, func(m member) {
		value, ok := m.value, true
		if r.form == registryServer {
			value, ok = r.fromRegistry(m, m.name)
		}
		if r.form == bareServers && (m.name == "$schema" || m.name == "x-dormouse") || !ok {
			return
		}
		raw.Servers = append(raw.Servers, RawServer{Name: m.name, JSON: r.plain(nil, value), Position: r.source.position(m.at)})
	})
}
