package catalog

import (
	"slices"
	"strings"
)

// expansion is what became of one string of the file.
type expansion struct {
	text    string
	missing []string // variables that are not set and have no default
	inputs  []string // ids of `${input:ID}`
	editor  []string // `${…}` that only the editor can fill in that the file is from
	odd     bool     // some `${…}` was left as it is, because it names no variable
}

// variables is what strings of the file may name.
type variables struct {
	getenv Getenv
	inputs map[string]input
	// project is the folder that `${workspaceFolder}` names in a file of VS Code, "" for
	// the workspace of a process.
	project string
}

// input is a value that VS Code asks its user for.
type input struct {
	description, fallback string
	optional              bool // there is a fallback
	secret                bool
}

// InputVariable is the variable that `${input:ID}` takes its value from: the id in
// capitals, with an underscore for whatever is neither letter nor digit.
func InputVariable(id string) string {
	name := strings.Map(func(c rune) rune {
		if c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToUpper(id))
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "_" + name
	}
	return name
}

// expand puts variables into s: `${VAR}` and `${env:VAR}` are the variable,
// `${VAR:-default}` is the default when the variable is not set or empty. `${input:ID}`
// is the variable [InputVariable]. `${userHome}` is HOME, `${/}` and `${pathSeparator}`
// are a slash. Anything else stays as it is: `$VAR`, `$$`, and `${…}` around something
// that is not a name, as a shell script in args may hold. [WorkspaceVariable] stays as
// well, whatever is set. What was put in is not expanded again, and a default ends at the
// first `}`.
func (v variables) expand(s string) expansion {
	var e expansion
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		out.WriteString(before)
		if !found {
			break
		}
		inside, after, closed := strings.Cut(rest, "}")
		value, ok := "", false
		if closed {
			value, ok = v.value(inside, &e)
		}
		if !ok {
			e.odd = true
			out.WriteString("${")
			s = rest
			continue
		}
		out.WriteString(value)
		s = after
	}
	e.text = out.String()
	return e
}

// value is what stands for `${inside}`; ok is false if that is no variable. What is
// missing is put down in e.
func (v variables) value(inside string, e *expansion) (value string, ok bool) {
	switch inside {
	case workspaceName:
		if v.project != "" {
			return v.project, true
		}
		return WorkspaceVariable, true
	case "/", "pathSeparator":
		return "/", true
	case "userHome":
		inside = "HOME"
	}
	switch kind, rest, found := strings.Cut(inside, ":"); {
	case found && kind == "input" && rest != "":
		return v.input(rest, e), true
	case found && kind == "env":
		inside = rest
	case found && slices.Contains([]string{"command", "config", "extensionInstallFolder"}, kind):
		e.editor = append(e.editor, "${"+kind+":…}")
		return "", true
	}
	name, fallback, optional := strings.Cut(inside, ":-")
	if !isVariable(name) {
		return "", false
	}
	value, set := v.getenv(name)
	switch {
	case optional && value == "":
		value = fallback
	case !set && !optional:
		e.missing = append(e.missing, name)
	}
	return value, true
}

func (v variables) input(id string, e *expansion) string {
	value, set := v.getenv(InputVariable(id))
	if in := v.inputs[id]; !set && in.optional {
		return in.fallback
	}
	e.inputs = append(e.inputs, id)
	return value
}

// isVariable says whether s is a name that a shell would accept.
func isVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
