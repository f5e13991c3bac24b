package serversfile

import (
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Pin returns the pin of a server. With a pin, clients see the server's tools only as the operator
// accepted them (x-dormouse.tools.pin). Pin returns nil if clients see what the server lists. By
// default a server has a pin if others may change it without a change of the file: packages and
// images without a version, and remote servers at public addresses. A server whose lists may depend
// on the principal has no pin by default, because all clients see the same accepted tools.
func (s Server) Pin() *storage.Pin {
	source, changes := s.source()
	on := changes && len(s.Principal()) == 0 && (s.Box.Scope == "" || s.Box.Scope == ScopeSession)
	if s.Tools.Pin != nil {
		on = *s.Tools.Pin
	}
	if !on {
		return nil
	}
	return &storage.Pin{Server: s.Name, Source: source}
}

// source names what a server runs, without its version and without secrets. If changes is true,
// others may change what the server runs without a change of the file.
func (s Server) source() (name string, changes bool) {
	if s.Native != "" {
		return "native " + s.Native, false
	}
	if s.Remote.URL != "" {
		return "remote " + s.Remote.Address(), !s.Remote.Private
	}
	if c, ok, err := s.Sealable(); ok && err == nil {
		image, digest, _ := strings.Cut(c.Image, "@")
		tag := ""
		if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
			image, tag = image[:i], image[i+1:]
		}
		return "image " + image, digest == "" && (tag == "" || tag == "latest")
	}
	if packages, kind := s.packages(); len(packages) > 0 {
		name, _, _ := versionOf(kind, packages[0])
		for _, p := range packages {
			_, fixed, own := versionOf(kind, p)
			changes = changes || !fixed && !own
		}
		return kind + " " + name, changes
	}
	return "command " + path.Base(s.Command), false
}

// packages returns the packages that a package runner installs, as the file has them, and their
// kind. The runner starts the first package.
func (s Server) packages() (all []string, kind string) {
	of, args := s.runner()
	if of == nil {
		return nil, ""
	}
	kind = "npm"
	if strings.HasPrefix(of[0], "uv") || of[0] == "pipx" {
		kind = "pypi"
	}
	var with []string
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "--" {
		option, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if takes := slices.Contains(optionsWithValue(), option); takes && !joined && len(args) > 0 {
			value, args = args[0], args[1:]
		}
		switch option {
		case "-p", "--package", "--from", "--spec":
			if option != "-p" || kind == "npm" { // -p of uvx names an interpreter, and no package
				all = append(all, value)
			}
		case "--with", "-w":
			with = append(with, value)
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(all) == 0 && len(args) > 0 {
		all = args[:1]
	}
	return append(slices.Clone(all), with...), kind
}

// optionsWithValue returns those options of package runners that take the next argument as their
// value.
func optionsWithValue() []string {
	return []string{
		"-p", "--package", "-c", "--call", "--from", "--spec", "--with", "-w", "--python", "--index", "--index-url", "--extra-index-url",
		"--registry", "--with-requirements", "--with-editable", "--refresh-package", "--directory", "--project", "--cache", "--cache-dir", "--userconfig", "--prefix",
	}
}

// fixedVersions match one version of a package of each kind, but no range and no tag. To npm, 1 and
// 1.2 are ranges.
var fixedVersions = sync.OnceValue(func() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"npm":  regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]*)?$`),
		"pypi": regexp.MustCompile(`^v?[0-9]+(\.[0-9]+)*[0-9A-Za-z.+_-]*$`),
	}
})

// commit matches the name of a git commit.
var commit = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[@#][0-9a-f]{40}$`) })

// versionOf splits word: a package as a command line names it. The argument kind is "npm" or "pypi".
// The result fixed reports whether word names one version; own reports whether word is a folder or a
// file.
func versionOf(kind, word string) (name string, fixed, own bool) {
	if strings.HasPrefix(word, ".") || filepath.IsAbs(word) || strings.HasPrefix(word, "file:") {
		return filepath.Base(word), false, true
	}
	if strings.Contains(word, "://") || strings.HasPrefix(word, "git+") || strings.HasPrefix(word, "github:") {
		return strings.SplitN(commit().ReplaceAllString(word, ""), "?", 2)[0], commit().MatchString(word), false
	}
	scope, rest := "", word
	if strings.HasPrefix(word, "@") {
		if before, after, ok := strings.Cut(word, "/"); ok {
			scope, rest = before+"/", after
		}
	}
	i := strings.IndexAny(rest, "@=<>~! ;")
	if i < 0 {
		name, _, _ = strings.Cut(rest, "[")
		return scope + name, false, false
	}
	version := strings.TrimPrefix(strings.TrimPrefix(rest[i:], "@"), "==")
	name, _, _ = strings.Cut(rest[:i], "[")
	return scope + name, fixedVersions()[kind].MatchString(version), false
}
