package serversfile

import (
	"path/filepath"
	"slices"
	"strings"
)

// runner is a program that runs packages from a registry.
type runner struct {
	command []string // the name of the program, and its first arguments
	args    string   // how the arguments of the program begin, for a message
}

func runners() []runner {
	return []runner{
		{[]string{"npx"}, `"-y", `},
		{[]string{"npm", "exec"}, `"exec", "-y", "--", `},
		{[]string{"npm", "x"}, `"x", "-y", "--", `},
		{[]string{"bunx"}, ""},
		{[]string{"uvx"}, ""},
		{[]string{"uv", "tool", "run"}, `"tool", "run", `},
		{[]string{"pipx", "run"}, `"run", `},
	}
}

// runner returns the package runner that the command line starts, and its further arguments. If the
// command line starts another program, the result has no command.
func (s Server) runner() (of runner, args []string) {
	line := append([]string{filepath.Base(s.Command)}, s.Args...)
	for _, of := range runners() {
		if k := len(of.command); len(line) >= k && slices.Equal(line[:k], of.command) {
			return of, line[k:]
		}
	}
	return runner{}, nil
}

// lacksPackage reports whether the command is a package runner without a package. The result args is
// how the runner's arguments should begin. A runner without a package waits for a line to execute, so
// the start would end only after its time limit. An argument that is no option counts as a package,
// although it may be the value of an option.
func (s Server) lacksPackage() (command, args string, lacks bool) {
	if strings.Contains(s.Command, "/") && !filepath.IsAbs(s.Command) {
		return "", "", false // a program in a folder of the server, not npx or uvx
	}
	of, rest := s.runner()
	if of.command == nil || slices.ContainsFunc(rest, names) {
		return "", "", false
	}
	return strings.Join(of.command, " "), of.args, true
}

// names reports whether an argument may name a package or a command.
func names(arg string) bool {
	if !strings.HasPrefix(arg, "-") {
		return arg != ""
	}
	option, _, joined := strings.Cut(arg, "=")
	return joined && slices.Contains([]string{"-p", "--package", "-c", "--call", "--from", "--spec"}, option)
}
