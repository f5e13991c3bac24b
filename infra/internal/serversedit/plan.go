package serversedit

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Values of Does in [Item].
const (
	Add      = "add"
	Replace  = "replace"
	Keep     = "keep"      // a server with this name exists and stays unchanged
	LeaveOut = "leave out" // the server cannot be hosted
)

// Options are the user's choices for [Import], and facts about this machine.
type Options struct {
	Only    []string // names of servers in the source; nil for all
	Replace bool     // replace servers that have the same name
	Folder  string   // folder of the servers file
	Exists  func(path string) bool
	// Program reports whether the program that a command line needs is on this machine.
	Program func(command string, args []string) bool
}

// Item is the result of importing one server. It contains no values of variables.
type Item struct {
	Name   string   `json:"name"`
	Was    string   `json:"was,omitempty"` // name in the source, if it is not a valid name here
	Does   string   `json:"does"`
	Why    string   `json:"why,omitempty"`    // why the server is kept or left out
	Moved  []string `json:"moved,omitempty"`  // variables that now have values of the source
	Absent []string `json:"absent,omitempty"` // programs and paths that are not on this machine
	Unset  []Unset  `json:"unset,omitempty"`  // variables without a value
	// Ignored are keys of other clients that were not imported.
	Ignored []string `json:"ignored,omitempty"`
	// Direct reports that mcp-remote was removed: the entry now names the remote server itself.
	Direct bool `json:"direct,omitempty"`
	Off    bool `json:"off,omitempty"` // the server is disabled
}

// Unset is a variable that a server needs and that has no value.
type Unset struct {
	Variable string `json:"variable"`
	What     string `json:"what,omitempty"`   // description in the source
	Secret   bool   `json:"secret,omitempty"` // also true if the source does not say
}

// Import copies servers from a source to a file, and their secrets to env. Without o.Only it also
// copies those members of x-dormouse that the source has. If the source lacks a server in o.Only,
// the error names it.
func Import(src Source, f *File, env *Env, o Options) ([]Item, error) {
	var items []Item
	for _, name := range o.Only {
		if !slices.ContainsFunc(src.Servers, func(s Theirs) bool { return s.Name == name }) {
			return nil, fmt.Errorf("there is no server %s to import: there are %s", name, strings.Join(namesOf(src), ", "))
		}
	}
	taken := map[string]bool{}
	for _, s := range src.Servers {
		if o.Only != nil && !slices.Contains(o.Only, s.Name) {
			continue
		}
		item, err := importer{src, f, env, o}.one(s, taken)
		if err != nil {
			return nil, fmt.Errorf("server %q: %w", s.Name, err)
		}
		items = append(items, item)
	}
	if o.Only != nil {
		return items, nil
	}
	for _, m := range src.ours {
		item := Item{Name: "x-dormouse." + m.name, Does: Add}
		switch _, there, err := jsonedit.Get(f.text, "x-dormouse", m.name); {
		case err != nil:
			return nil, err
		case there && !o.Replace:
			item.Does, item.Why = Keep, inFile
		case there:
			item.Does = Replace
		}
		if item.Does != Keep {
			if err := f.SetOurs(m.value, m.name); err != nil {
				return nil, err
			}
		}
		items = append(items, item)
	}
	return items, nil
}

// inFile is the reason why a server, or a member of x-dormouse, is not imported.
const inFile = "it is in the file already: --replace takes the other one"

func namesOf(src Source) (names []string) {
	for _, s := range src.Servers {
		names = append(names, s.Name)
	}
	return names
}

type importer struct {
	src Source
	f   *File
	env *Env
	o   Options
}

// one imports one server. The argument taken has the names that this import has used so far.
func (im importer) one(s Theirs, taken map[string]bool) (Item, error) {
	item := Item{Name: ValidName(s.Name), Does: Add}
	for n := 2; taken[item.Name]; n++ {
		item.Name = fmt.Sprintf("%s-%d", ValidName(s.Name), n)
	}
	taken[item.Name] = true
	if item.Name != s.Name {
		item.Was = s.Name
	}
	e, _, err := ParseEntry(s.JSON)
	why := s.Why
	if err != nil && why == "" {
		why = err.Error()
	}
	switch {
	case why != "":
		item.Does, item.Why = LeaveOut, why
		return item, nil
	case im.f.Has(item.Name) && !im.o.Replace:
		item.Does, item.Why = Keep, inFile
		return item, nil
	case im.f.Has(item.Name):
		item.Does = Replace
	}
	item.Direct = e.Unwrap()
	item.Off = e.Disabled != nil && *e.Disabled || e.Enabled != nil && !*e.Enabled
	for _, in := range im.src.Inputs { // a default that contains "}" cannot be written as ${NAME:-default}
		name := serversfile.InputVariable(in.ID)
		if _, set := im.env.Lookup(name); !set && strings.Contains(in.Default, "}") && strings.Contains(string(s.JSON), "${"+name+"}") {
			im.env.add(name, in.Default)
		}
	}
	for _, v := range e.Env {
		if im.secret(v.Value) {
			e.Hide(v.Name)
		}
	}
	if im.src.Folder != "" {
		e.EnvFile = strings.ReplaceAll(e.EnvFile, "${workspaceFolder}", im.src.Folder)
	}
	e.Rebase(im.src.Folder, im.o.Folder, im.o.Exists)
	before := len(im.env.Added())
	if err := e.KeepSecrets(item.Name, im.env); err != nil {
		return item, err
	}
	item.Moved = slices.Clone(im.env.Added()[before:])
	item.Unset, item.Absent, item.Ignored = im.unset(item.Name, e), im.absent(e), e.Ignored
	return item, im.f.Set(item.Name, e)
}

// ValidName returns a valid name for a server that has this name in another client. It replaces
// characters that cannot be in the path of a URL by hyphens.
func ValidName(name string) string {
	name = regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(name, "-")
	name = strings.TrimRight(strings.TrimLeft(name, "-._"), "-")
	switch name = name[:min(len(name), 64)]; name {
	case "":
		return "server"
	case "ping", "sping", "console": // reserved paths
		return name + "-server"
	}
	return name
}

// secret reports whether a value refers to an input of VS Code that is marked as a password.
func (im importer) secret(value string) bool {
	return slices.ContainsFunc(im.src.Inputs, func(in Input) bool {
		_, rest, ok := strings.Cut(value, "${"+serversfile.InputVariable(in.ID))
		return in.Secret && ok && (strings.HasPrefix(rest, "}") || strings.HasPrefix(rest, ":-"))
	})
}

// Rebase makes paths absolute that are relative to folder. It changes nothing if folder is "" or
// serversFolder, the folder of the servers file. An argument is a path if it names an existing
// file. Paths that begin with "~" stay.
func (e *Entry) Rebase(folder, serversFolder string, exists func(path string) bool) {
	if folder == "" || folder == serversFolder {
		return
	}
	at := func(path string, always bool) string {
		if path == "" || filepath.IsAbs(path) || strings.HasPrefix(path, "$") || strings.HasPrefix(path, "~") || strings.HasPrefix(path, "-") {
			return path
		}
		if whole := filepath.Join(folder, path); always || strings.ContainsAny(path, "./") && exists(whole) {
			return whole
		}
		return path
	}
	e.Cwd, e.EnvFile = at(e.Cwd, true), at(e.EnvFile, true)
	if strings.Contains(e.Command, "/") {
		e.Command = at(e.Command, false)
	}
	for i, arg := range e.Args {
		if option, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
			e.Args[i] = option + "=" + at(value, false)
			continue
		}
		e.Args[i] = at(arg, false)
	}
}

// unset returns the variables without which a server cannot be served, and that have no value.
func (im importer) unset(name string, e Entry) (all []Unset) {
	e.Disabled, e.Enabled = nil, nil // a server that is off lacks nothing
	c, _, err := serversfile.ParseHere(fileOf(name, e.JSON()), filepath.Join(im.o.Folder, "servers.json"), im.env.Lookup)
	if err != nil {
		return nil // the file as a whole is what fileOf writes
	}
	for _, r := range c.Rejected() {
		for _, wrong := range r.Errors {
			v := wrong.Lacks
			if v == nil || slices.ContainsFunc(all, func(o Unset) bool { return o.Variable == v.Name }) {
				continue
			}
			u := Unset{Variable: v.Name, Secret: true}
			for _, in := range im.src.Inputs {
				if serversfile.InputVariable(in.ID) == v.Name {
					u.What, u.Secret = in.Description, in.Secret
				}
			}
			all = append(all, u)
		}
	}
	return all
}

// absent returns the programs and paths in an entry that do not exist on this machine.
func (im importer) absent(e Entry) (all []string) {
	if e.URL != "" {
		return nil
	}
	path := func(s string) bool {
		return filepath.IsAbs(s) && !strings.Contains(s, "${") || regexp.MustCompile(`^[A-Za-z]:[\\/]`).MatchString(s)
	}
	for _, s := range append([]string{e.Cwd, e.EnvFile}, e.Args...) {
		if _, value, ok := strings.Cut(s, "="); ok && strings.HasPrefix(s, "-") {
			s = value
		}
		if path(s) && !im.o.Exists(s) {
			all = append(all, s)
		}
	}
	switch {
	case path(e.Command) && !im.o.Exists(e.Command), !strings.ContainsAny(e.Command, "/\\$") && !im.o.Program(e.Command, e.Args):
		all = append([]string{e.Command}, all...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
