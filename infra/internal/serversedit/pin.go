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

// Package is an npm or PyPI package that a server starts with npx, uvx or a similar command.
type Package struct {
	Kind    string // "npm" or "pypi"
	Name    string
	Version string // "" if the server starts the newest version
	arg     int    // index of the argument that names the package
	before  string // the part of that argument before the version, including "@" or "=="
}

// oneVersion matches the text after a package's name that selects one version: Python extras, "@"
// or "==", and the version.
var oneVersion = regexp.MustCompile(`^((?:\[[^\]]*\])?(?:@|==)v?)([0-9][0-9A-Za-z.+!_-]*)$`)

// packageOf returns the package that a command line starts. ok is false if there is none, or if it
// is selected by a range of versions or by a tag other than "latest".
func packageOf(command string, args []string) (p Package, ok bool) {
	of, ok := provision.PackageOf(command, args)
	p.Kind, p.Name = of.Kind, of.Name
	p.arg = slices.IndexFunc(args, func(arg string) bool {
		before, found := strings.CutSuffix(arg, of.Word)
		return found && (before == "" || strings.HasSuffix(before, "="))
	})
	if !ok || p.arg < 0 || strings.Contains(of.Word, "${") {
		return p, false
	}
	rest := strings.TrimPrefix(of.Word, of.Name)
	if m := oneVersion.FindStringSubmatch(rest); m != nil {
		p.Version, p.before = m[2], strings.TrimSuffix(args[p.arg], m[2])
		return p, true
	}
	sign := "@"
	if p.Kind == "pypi" && slices.ContainsFunc(args, func(arg string) bool { return arg == "--from" || strings.HasPrefix(arg, "--from=") }) {
		sign = "=="
	}
	p.before = strings.TrimSuffix(args[p.arg], rest) + sign
	return p, rest == "" || rest == "@latest"
}

// Package returns the package that the entry starts. ok is false if there is none, or if it is
// selected by a range of versions or by a tag other than "latest".
func (e Entry) Package() (p Package, ok bool) { return packageOf(e.Command, e.Args) }

// Pin makes the entry start this version of its package.
func (e *Entry) Pin(p Package, version string) {
	e.Args = slices.Clone(e.Args)
	e.Args[p.arg] = p.before + version
}

// Package returns the package that a server in the file starts; see [Entry.Package].
func (f *File) Package(server string) (p Package, ok bool) {
	var e struct {
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	text, ok, err := jsonedit.Get(f.text, f.path(server)...)
	if err != nil || !ok || json.Unmarshal(text, &e) != nil {
		return p, false
	}
	return packageOf(e.Command, e.Args)
}

// SetVersion makes a server start another version of its package.
func (f *File) SetVersion(server string, p Package, version string) error {
	if !oneVersion.MatchString("@" + version) {
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
