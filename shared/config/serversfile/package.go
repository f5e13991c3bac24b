package serversfile

import (
	"path/filepath"
	"slices"
	"strings"
)

// runners returns the programs that run packages from a registry, each with its first arguments.
func runners() [][]string {
	return [][]string{{"npx"}, {"npm", "exec"}, {"npm", "x"}, {"bunx"}, {"uvx"}, {"uv", "tool", "run"}, {"pipx", "run"}}
}

// runner returns the package runner that the command line starts, and its further arguments. If the
// command line starts another program, of is nil.
func (s Server) runner() (of, args []string) {
	line := append([]string{filepath.Base(s.Command)}, s.Args...)
	for _, of := range runners() {
		if k := len(of); len(line) >= k && slices.Equal(line[:k], of) {
			return of, line[k:]
		}
	}
	return nil, nil
}

// lacksPackage returns the command if it is a package runner without a package, and "" otherwise. A
// runner without a package waits for a line to execute, so the start would end only after its time
// limit. An argument that is no option counts as a package, although it may be the value of an option.
func (s Server) lacksPackage() (command string) {
	if strings.Contains(s.Command, "/") && !filepath.IsAbs(s.Command) {
		return "" // a program in a folder of the server, not npx or uvx
	}
	of, rest := s.runner()
	if slices.ContainsFunc(rest, names) {
		return ""
	}
	return strings.Join(of, " ")
}

// names reports whether an argument may name a package or a command.
func names(arg string) bool {
	if !strings.HasPrefix(arg, "-") {
		return arg != ""
	}
	option, _, joined := strings.Cut(arg, "=")
	return joined && slices.Contains([]string{"-p", "--package", "-c", "--call", "--from", "--spec"}, option)
}
