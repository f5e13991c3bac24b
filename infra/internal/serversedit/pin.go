package serversedit

import (
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
)

// Unpinned is a package that an entry starts without a fixed version.
type Unpinned struct {
	Kind string // "npm" or "pypi"
	Name string
	word string // in args
}

// Unpinned returns the package that the entry starts with npx or uvx. ok is false if the
// entry gives a version, a range, or a tag other than "latest".
func (e Entry) Unpinned() (u Unpinned, ok bool) {
	p, ok := provision.PackageOf(e.Command, e.Args)
	if !ok || strings.Contains(p.Word, "${") {
		return u, false
	}
	rest := strings.TrimPrefix(p.Word, p.Name)
	return Unpinned{p.Kind, p.Name, p.Word}, rest == "" || rest == "@latest"
}

// Pin sets the version of the package.
func (e *Entry) Pin(u Unpinned, version string) {
	sign := "@"
	if u.Kind == "pypi" && slices.ContainsFunc(e.Args, func(arg string) bool { return arg == "--from" || strings.HasPrefix(arg, "--from=") }) {
		sign = "=="
	}
	args := slices.Clone(e.Args)
	for i, arg := range args {
		if before, found := strings.CutSuffix(arg, u.word); found && (before == "" || strings.HasSuffix(before, "=")) {
			args[i] = before + u.Name + sign + version
			break
		}
	}
	e.Args = args
}
