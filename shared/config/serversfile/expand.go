package serversfile

import (
	"slices"
	"strings"
)

// expansion is a text of the file whose variables are replaced.
type expansion struct {
	text    string
	missing []string // variables that are not set and have no default
	inputs  []string // ids of `${input:ID}`
	editor  []string // `${…}` that only an editor such as VS Code can expand
	secret  bool     // the text still has a `${principal:…}`
	odd     bool     // the text still has a `${…}` that names no variable
}

// variables has the values for `${…}` in strings of the file.
type variables struct {
	getenv Getenv
	// project is the folder that `${workspaceFolder}` means, "" for the workspace of a
	// process.
	project string
	// principals permits `${principal:…}`.
	principals bool
}

// InputVariable returns the variable that gives the value of `${input:ID}`. Its name is the id in
// capitals, with an underscore for every character that is no ASCII letter or digit, and one before a
// digit at the beginning.
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

// expand replaces variables in s:
//
//   - `${VAR}` and `${env:VAR}` become the variable.
//   - `${VAR:-default}` becomes the default if the variable is not set or empty. A
//     default ends at the first `}`.
//   - `${input:ID}` becomes the variable [InputVariable].
//   - `${userHome}` becomes HOME, `${/}` and `${pathSeparator}` a slash.
//
// Anything else stays as it is: `$VAR`, `$$`, and `${…}` around text that is not a name,
// as a shell script in args may hold. [WorkspaceVariable] also stays, even if such a
// variable is set, and so do `${principal:NAME}` and `${principal_file:NAME}`. Inserted
// values are not expanded again.
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

// value returns the value for `${inside}`; ok is false if inside is no variable. value records
// missing variables in e.
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
		e.inputs = append(e.inputs, rest)
		value, _ := v.getenv(InputVariable(rest))
		return value, true
	case found && (kind == principalKind || kind == principalFileKind) && validName(rest):
		e.secret = true
		return "${" + inside + "}", true
	case found && kind == "env":
		inside = rest
	case found && slices.Contains([]string{"command", "config", "extensionInstallFolder"}, kind):
		e.editor = append(e.editor, "${"+kind+":…}")
		return "", true
	}
	name, fallback, optional := strings.Cut(inside, ":-")
	if !IsVariable(name) {
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

// IsVariable reports whether s can be the name of a variable: ASCII letters, digits and "_", and
// no digit first.
func IsVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
