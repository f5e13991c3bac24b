package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pkg is a package of the product, without its tests.
type pkg struct {
	path    string // path below the module
	set     *token.FileSet
	files   []*ast.File
	types   *types.Package
	info    *types.Info
	imports []string // the imported packages of this module
}

// load returns the packages of the module in root, as go list sees them on this machine.
// Packages for tests are not among them.
func load(root string) ([]*pkg, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Imports,Export,Module", "./...") //nolint:noctx // nobody cancels it
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := map[string]string{}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	var all []*pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var listed struct {
			ImportPath, Dir, Export string
			GoFiles, Imports        []string
			Module                  *struct {
				Path string
				Main bool
			}
		}
		if err := d.Decode(&listed); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		exports[listed.ImportPath] = listed.Export
		if listed.Module == nil || !listed.Module.Main || strings.HasSuffix(listed.ImportPath, "test") {
			continue
		}
		p := &pkg{path: strings.TrimPrefix(listed.ImportPath, listed.Module.Path+"/"), set: token.NewFileSet()}
		for _, name := range listed.GoFiles {
			f, err := parser.ParseFile(p.set, filepath.Join(listed.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			p.files = append(p.files, f)
		}
		for _, path := range listed.Imports {
			if own, ours := strings.CutPrefix(path, listed.Module.Path+"/"); ours {
				p.imports = append(p.imports, own)
			}
		}
		if err := p.check(open); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

var (
	parameter = regexp.MustCompile(`(?m)^  [A-Za-z0-9]+:$`)
	quoted    = regexp.MustCompile("`[^`]+`")
	variable  = regexp.MustCompile(`\bDORMOUSE_[A-Z0-9_]*[A-Z0-9]\b`)
)

// notCounted is the kind of variables that no person sets. The template sets them from its
// parameters, or one of our programs sets them to start another.
const notCounted = "not counted: variables that the template, or a program of ours, sets"

// knobs returns what somebody can set, by its kind: the template's parameters, variables in the
// strings of programs, and keys of the servers file and flags of the commands that docs lists.
func knobs(root string, packages []*pkg) (map[string][]string, error) {
	var pages [4]string
	for i, name := range []string{"template.yaml", "docs/servers-file.md", "docs/cli.md", "docs/environment.md"} {
		text, err := os.ReadFile(filepath.Join(root, name)) //nolint:gosec // a file of the tree that the caller names
		if err != nil {
			return nil, err
		}
		pages[i] = string(text)
	}
	_, template, _ := strings.Cut(pages[0], "\nParameters:\n")
	if end := regexp.MustCompile(`(?m)^\S`).FindStringIndex(template); end != nil {
		template = template[:end[0]]
	}
	var variables []string
	for _, p := range packages {
		for _, f := range p.files {
			if strings.HasPrefix(p.path, "infra/internal/emulator") {
				continue // a program for tests
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if s, err := strconv.Unquote(lit.Value); err == nil {
						variables = append(variables, variable.FindAllString(s, -1)...)
					}
				}
				return true
			})
		}
	}
	slices.Sort(variables)
	variables = slices.Compact(variables)
	people, _, _ := strings.Cut(pages[3], "\n## Functions on AWS\n")
	ours := slices.DeleteFunc(slices.Clone(variables), func(name string) bool { return strings.Contains(people, "`"+name+"`") })
	variables = slices.DeleteFunc(variables, func(name string) bool { return slices.Contains(ours, name) })
	var keys []string
	table := false
	for line := range strings.Lines(pages[1]) {
		cells := strings.Split(line, "|")
		switch {
		case len(cells) < 3:
			table = false
		case strings.TrimSpace(cells[1]) == "key":
			table = true
		case table:
			keys = append(keys, quoted.FindAllString(cells[1], -1)...)
		}
	}
	flags := regexp.MustCompile("(?m)^- `-.*$").FindAllString(pages[2], -1)
	slices.Sort(flags)
	return map[string][]string{
		"parameters of template.yaml": parameter.FindAllString(template, -1),
		"variables DORMOUSE_*":        variables,
		notCounted:                    ours,
		"keys of the servers file":    keys,
		"flags of commands":           slices.Compact(flags),
	}, nil
}
