package catalog

import "strings"

// expansion is what became of one string of the file.
type expansion struct {
	text    string
	missing []string // variables that are not set and have no default
	odd     bool     // some `${…}` was left as it is, because it names no variable
}

// expand puts variables into s: `${VAR}` is the variable, `${VAR:-default}` the
// default when the variable is not set or empty. Anything else stays as it is:
// `$VAR`, `$$`, and `${…}` around something that is not a name, as a shell
// script in args may hold, and so does [WorkspaceVariable], whatever is set. What was put in is not expanded again, and a default
// ends at the first `}`.
func expand(s string, getenv Getenv) expansion {
	var e expansion
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		out.WriteString(before)
		if !found {
			break
		}
		inside, after, closed := strings.Cut(rest, "}")
		name, fallback, optional := strings.Cut(inside, ":-")
		if closed && inside == workspaceName {
			out.WriteString(WorkspaceVariable)
			s = after
			continue
		}
		if !closed || !variable(name) {
			e.odd = true
			out.WriteString("${")
			s = rest
			continue
		}
		value, set := getenv(name)
		switch {
		case optional && value == "":
			value = fallback
		case !set && !optional:
			e.missing = append(e.missing, name)
		}
		out.WriteString(value)
		s = after
	}
	e.text = out.String()
	return e
}

// variable says whether s is a name that a shell would accept.
func variable(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
