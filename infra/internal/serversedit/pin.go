package serversedit

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/config/jsonedit"
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

// Pinned is a package of which an entry starts one version.
type Pinned struct {
	Kind, Name, Version string
	arg                 int    // index in args
	before              string // the part of that argument before the version
}

// pinnedWord fits a package with one version, behind its name: an extra of Python, and the sign.
var pinnedWord = regexp.MustCompile(`^((?:\[[^\]]*\])?(?:@|==)v?)([0-9][0-9A-Za-z.+!_-]*)$`)

// Pinned returns the package of which a server starts one version. ok is false if there is none.
func (f *File) Pinned(server string) (p Pinned, ok bool) {
	var e struct {
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	text, ok, err := jsonedit.Get(f.text, f.path(server)...)
	if err != nil || !ok || json.Unmarshal(text, &e) != nil {
		return p, false
	}
	of, ok := provision.PackageOf(e.Command, e.Args)
	if !ok {
		return p, false
	}
	m := pinnedWord.FindStringSubmatch(strings.TrimPrefix(of.Word, of.Name))
	at := slices.IndexFunc(e.Args, func(arg string) bool {
		before, ok := strings.CutSuffix(arg, of.Word)
		return ok && (before == "" || strings.HasSuffix(before, "="))
	})
	if m == nil || at < 0 {
		return p, false
	}
	return Pinned{Kind: of.Kind, Name: of.Name, Version: m[2], arg: at, before: strings.TrimSuffix(e.Args[at], m[2])}, true
}

// SetVersion has a server start another version of its package.
func (f *File) SetVersion(server string, p Pinned, version string) error {
	if !pinnedWord.MatchString("@" + version) {
		return fmt.Errorf("%q is not one version", version)
	}
	return f.change(func() ([]byte, error) {
		return jsonedit.SetElement(f.text, jsonedit.Encode(p.before+version), p.arg, f.path(server, "args")...)
	})
}

// Copy adds a copy of a server under another name.
func (f *File) Copy(server, name string) error {
	return f.change(func() ([]byte, error) {
		entry, ok, err := jsonedit.Get(f.text, f.path(server)...)
		if err != nil || !ok {
			return nil, fmt.Errorf("there is no server %s", server)
		}
		return jsonedit.Set(f.text, entry, f.path(name)...)
	})
}
