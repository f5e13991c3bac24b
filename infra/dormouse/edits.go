package dormouse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// editsOf returns the edits of the servers file that the console offers. They do what dormouse add,
// enable, disable and env set do.
func (t *terminal) editsOf(servers, data string) api.Edits {
	file := fileFlag{servers}
	change := func(names []string, use func(f *edited, name string) error) error {
		if _, err := (named{names, file}).change(use); err != nil {
			return err
		}
		return takenAtOnce(data, names)
	}
	return api.Edits{
		Add: func(_ context.Context, s api.NewServer) (string, error) {
			args, err := addArguments(s)
			if err != nil {
				return "", err
			}
			return t.quietly(append([]string{"add", "--servers", servers, "--data", data}, args...))
		},
		Switch: func(_ context.Context, server string, on bool) error {
			return change([]string{server}, func(f *edited, name string) error { return f.Switch(name, on) })
		},
		SetValue: func(_ context.Context, server, name, value string) error {
			return change([]string{server}, func(f *edited, server string) error { return f.setValue(f.env, server, name, value) })
		},
	}
}

// quietly runs a command line that cannot ask the user, and returns its output.
func (t *terminal) quietly(args []string) (said string, err error) {
	var out, why bytes.Buffer
	own := *t
	own.in, own.out, own.err, own.ask = strings.NewReader(""), &out, &why, nil
	if code := execute(args, &own); code != exitDone {
		lines := strings.Split(strings.TrimSpace(why.String()), "\n")
		return "", errors.New(strings.TrimPrefix(lines[len(lines)-1], "dormouse: error: "))
	}
	return strings.TrimSpace(out.String()), nil
}

// addArguments returns arguments for dormouse add, from what a user has typed into the console's
// form.
func addArguments(s api.NewServer) (args []string, err error) {
	words, err := splitWords(s.What)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		return nil, errors.New("say what to add: a command, a URL, a folder, a bundle, or the name of a server in the registry")
	}
	if strings.HasPrefix(words[0], "-") || strings.HasPrefix(s.Name, "-") {
		return nil, errors.New("a name and a command do not begin with -")
	}
	for _, kv := range s.Env {
		args = append(args, "--env="+kv)
	}
	if s.Name != "" {
		args = append(args, s.Name)
	}
	if len(words) > 1 {
		args = append(args, "--")
	}
	return append(args, words...), nil
}

// splitWords splits a line into words as a shell does, with quotes and backslashes. It expands
// nothing.
func splitWords(line string) (words []string, err error) {
	var word strings.Builder
	begun, quote, escaped := false, rune(0), false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped, begun = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, begun = c, true
		case strings.ContainsRune(" \t\r\n", c):
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if quote != 0 || escaped {
		return nil, fmt.Errorf("a quote is not closed in the command")
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

// setValue sets an environment variable of a server. It saves the value in .env, and refers to it
// in the servers file.
func (e *edited) setValue(env *variables, server, name, value string) error {
	if !serversfile.IsVariable(name) {
		return errors.New("a variable has a name of letters, digits and _")
	}
	variable, err := env.Keep(server, name, value)
	if err != nil {
		return err
	}
	return e.SetVariable(server, name, "${"+variable+"}")
}
