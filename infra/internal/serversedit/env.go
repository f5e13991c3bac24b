package serversedit

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Env is the text of a .env file. Only Set changes a variable that is in the file.
type Env struct {
	text    []byte
	have    map[string]string
	outside serversfile.Getenv
	lines   []string // NAME=VALUE of the variables that were added or set
}

// NewEnv parses a .env file. If getenv is not nil, the variables that it returns have precedence
// over the file. Usually it is os.LookupEnv.
func NewEnv(text []byte, getenv serversfile.Getenv) *Env {
	if getenv == nil {
		getenv = func(string) (string, bool) { return "", false }
	}
	return &Env{text: text, have: serversfile.ParseEnv(text), outside: getenv}
}

// Text returns the content of the file.
func (e *Env) Text() []byte { return e.Onto(e.text) }

// Onto makes the changes in another content of the file.
func (e *Env) Onto(text []byte) []byte {
	for _, line := range e.lines {
		text = serversfile.SetEnv(text, line)
	}
	return text
}

// Added returns the names of the variables that were added or set, in order.
func (e *Env) Added() (names []string) {
	for _, line := range e.lines {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	return names
}

// Lookup is a [serversfile.Getenv]. Variables from outside the file have precedence over those in it.
func (e *Env) Lookup(name string) (string, bool) {
	if value, ok := e.outside(name); ok {
		return value, true
	}
	value, ok := e.have[name]
	return value, ok
}

// Keep stores a value in the file, and returns the variable that has it: name or, if name has
// another value already, the server's name and name. An error names the variable, but does not quote
// the value.
func (e *Env) Keep(server, name, value string) (variable string, err error) {
	if !utf8.ValidString(value) || strings.Contains(value, "\x00") {
		return "", fmt.Errorf("the value of %s is not UTF-8, or holds a NUL", name)
	}
	if !serversfile.IsVariable(name) {
		name = serversfile.InputVariable(name)
	}
	for n := range 100 {
		variable = name
		if n > 0 {
			variable = serversfile.InputVariable(server) + "_" + name
		}
		if n > 1 {
			variable += fmt.Sprintf("_%d", n)
		}
		other, set := e.outside(variable)
		if set && other != value {
			continue // other would have precedence over the value in the file
		}
		if old, ok := e.have[variable]; ok && old != value {
			continue
		} else if !ok {
			e.add(variable, value)
		}
		return variable, nil
	}
	return "", errors.New("every name for " + name + " is taken in .env: remove lines there that nothing uses")
}

// Set sets a variable, even if it has another value. An error does not quote the value.
func (e *Env) Set(name, value string) error {
	if !serversfile.IsVariable(name) {
		return errors.New("a variable has a name of letters, digits and _")
	}
	if !utf8.ValidString(value) || strings.Contains(value, "\x00") {
		return fmt.Errorf("the value of %s is not UTF-8, or holds a NUL", name)
	}
	e.add(name, value)
	return nil
}

func (e *Env) add(name, value string) {
	e.have[name], e.lines = value, append(e.lines, name+"="+quote(value))
}

// quote formats a value so that all readers of .env files decode it alike.
func quote(value string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-./:@%+,=", c)
	}
	switch {
	case value != "" && strings.IndexFunc(value, func(c rune) bool { return !plain(c) }) < 0:
		return value
	case !strings.ContainsAny(value, "'\r"):
		return "'" + value + "'"
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "\n", `\n`, "\r", `\r`).Replace(value) + `"`
}
