package serversedit

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Env is the text of a file of variables, .env. Its methods only add values, but for Set.
type Env struct {
	text    []byte
	have    map[string]string
	outside serversfile.Getenv
	added   []string
}

// NewEnv reads a file of variables. outside has the variables that win over the file,
// usually those of this program; nil has none.
func NewEnv(text []byte, outside serversfile.Getenv) *Env {
	if outside == nil {
		outside = func(string) (string, bool) { return "", false }
	}
	return &Env{text: text, have: serversfile.ParseEnv(text), outside: outside}
}

// Text returns the whole file.
func (e *Env) Text() []byte { return e.text }

// Added returns the names of the variables that were added, in order.
func (e *Env) Added() []string { return e.added }

// Lookup is a [serversfile.Getenv]: a variable of outside wins over one of the file.
func (e *Env) Lookup(name string) (string, bool) {
	if value, ok := e.outside(name); ok {
		return value, true
	}
	value, ok := e.have[name]
	return value, ok
}

// Keep puts a value into the file and returns the variable that now has it. That is name,
// unless name already has another value; then it is name with the server's name in front.
// The error names the variable and does not quote the value.
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
			continue // the value outside of the file would win over the one in it
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

// Set gives a variable a value, whatever value it had. The error does not quote the value.
func (e *Env) Set(name, value string) error {
	if !serversfile.IsVariable(name) {
		return errors.New("a variable has a name of letters, digits and _")
	}
	if !utf8.ValidString(value) || strings.Contains(value, "\x00") {
		return fmt.Errorf("the value of %s is not UTF-8, or holds a NUL", name)
	}
	e.text = serversfile.SetEnv(e.text, name+"="+quote(value))
	e.have[name] = value
	return nil
}

func (e *Env) add(name, value string) {
	if len(e.text) > 0 && e.text[len(e.text)-1] != '\n' {
		e.text = append(e.text, '\n')
	}
	e.text = append(e.text, name+"="+quote(value)+"\n"...)
	e.have[name], e.added = value, append(e.added, name)
}

// quote writes a value in a form that every reader of such files decodes in the same way.
// A value with only harmless characters stays bare. Any other value stands in single
// quotes, and cannot contain what would end them.
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
