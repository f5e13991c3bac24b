package sources

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
)

// Project is a server in a folder, and how to start it.
type Project struct {
	Name  string // guessed, and valid as the name of a server
	Entry serversedit.Entry
	Build [][]string // commands that must be run in the folder first, because something is missing
}

// maxManifest is the largest manifest that is read, in bytes.
const maxManifest = 1 << 20

func isProject(dir string) bool {
	for _, name := range []string{"manifest.json", "package.json", "pyproject.toml", "requirements.txt", "go.mod"} {
		if isFile(filepath.Join(dir, name)) {
			return true
		}
	}
	return false
}

// Find finds out how to start the server in a folder. dir is absolute. It looks for package.json,
// then for pyproject.toml or requirements.txt, and then for go.mod.
func Find(dir string) (p Project, err error) {
	has := func(name string) bool { return isFile(filepath.Join(dir, name)) }
	switch {
	case has("package.json"):
		p, err = ofNode(dir)
	case has("pyproject.toml") || has("requirements.txt"):
		p, err = ofPython(dir)
	case has("go.mod"):
		p, err = ofGo(dir)
	default:
		err = errors.New("it has no package.json, pyproject.toml, requirements.txt or go.mod")
	}
	if p.Name == "" {
		p.Name = short(filepath.Base(dir))
	}
	return p, err
}

// atPlace returns an entry that starts a program in the folder itself.
func atPlace(dir, command string, args ...string) serversedit.Entry {
	return serversedit.Entry{Command: command, Args: args, Cwd: dir}
}

// copied returns an entry that starts a program in a copy of the folder. Dormouse installs the
// dependencies there.
func copied(dir, command string, args ...string) serversedit.Entry {
	e := serversedit.Entry{Command: command, Args: args}
	e.SetBox("host_path", dir)
	return e
}

func ofNode(dir string) (p Project, err error) {
	var pkg struct {
		Name         string            `json:"name"`
		Main         string            `json:"main"`
		Bin          json.RawMessage   `json:"bin"`
		Scripts      map[string]string `json:"scripts"`
		Dependencies map[string]string `json:"dependencies"`
	}
	text, err := readManifest(filepath.Join(dir, "package.json"))
	if err == nil {
		err = json.Unmarshal(text, &pkg)
	}
	if err != nil {
		return p, fmt.Errorf("package.json: %w", err)
	}
	if pkg.Name != "" {
		p.Name = short(pkg.Name)
	}
	var bin string
	var bins map[string]string
	if json.Unmarshal(pkg.Bin, &bin) != nil && json.Unmarshal(pkg.Bin, &bins) == nil {
		for _, name := range slices.Sorted(maps.Keys(bins)) {
			if bin == "" || name == pkg.Name[strings.LastIndexByte(pkg.Name, '/')+1:] {
				bin = bins[name]
			}
		}
	}
	started := regexp.MustCompile(`^node\s+(?:-\S+\s+)*([^\s-]\S*)$`).FindStringSubmatch(strings.TrimSpace(pkg.Scripts["start"]))
	file := ""
	for _, name := range append([]string{bin, pkg.Main}, append(started[min(1, len(started)):], "index.js", "server.js", "index.mjs", "src/index.js")...) {
		if name == "" || !filepath.IsLocal(name) {
			continue
		}
		if file == "" {
			file = filepath.Clean(name) // if no file exists, this one must be built
		}
		if isFile(filepath.Join(dir, name)) {
			file = filepath.Clean(name)
			break
		}
	}
	there := isFile(filepath.Join(dir, file))
	_, noModules := os.Stat(filepath.Join(dir, "node_modules"))
	lock := isFile(filepath.Join(dir, "package-lock.json")) || isFile(filepath.Join(dir, "npm-shrinkwrap.json"))
	install := []string{"npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"}
	if lock {
		install[1] = "ci"
	}
	p.Entry = atPlace(dir, "node", filepath.Join(dir, file))
	switch {
	case !there && pkg.Scripts["build"] == "":
		return p, fmt.Errorf("package.json names no program that is there: it has neither bin nor main, and %s is missing", file)
	case !there:
		if noModules != nil {
			p.Build = append(p.Build, install)
		}
		p.Build = append(p.Build, []string{"npm", "run", "build"})
	case noModules == nil || len(pkg.Dependencies) == 0:
	case lock:
		p.Entry = copied(dir, "node", file)
	default:
		p.Build = [][]string{install}
	}
	return p, nil
}

func ofPython(dir string) (p Project, err error) {
	var file struct {
		Project struct {
			Name    string            `toml:"name"`
			Scripts map[string]string `toml:"scripts"`
		} `toml:"project"`
		Build map[string]any `toml:"build-system"`
	}
	text, err := readManifest(filepath.Join(dir, "pyproject.toml"))
	if err == nil {
		if err := toml.Unmarshal(text, &file); err != nil {
			return p, fmt.Errorf("pyproject.toml: %w", err)
		}
	}
	scripts := file.Project.Scripts
	if file.Project.Name != "" {
		p.Name = short(file.Project.Name)
	}
	if _, ok := scripts[file.Project.Name]; ok && file.Build != nil {
		p.Entry = copied(dir, file.Project.Name)
		return p, nil
	}
	if len(scripts) == 1 && file.Build != nil {
		for name := range scripts {
			p.Entry = copied(dir, name)
		}
		return p, nil
	}
	for _, name := range []string{"main.py", "server.py", "app.py", "src/main.py", "src/server.py"} {
		if isFile(filepath.Join(dir, name)) {
			p.Entry = copied(dir, "python3", name)
			return p, nil
		}
	}
	if all, err := filepath.Glob(filepath.Join(dir, "*.py")); err == nil && len(all) == 1 {
		p.Entry = copied(dir, "python3", filepath.Base(all[0]))
		return p, nil
	}
	return p, fmt.Errorf("pyproject.toml names no single program of the project, and there is no main.py or server.py")
}

func ofGo(dir string) (p Project, err error) {
	text, err := readManifest(filepath.Join(dir, "go.mod"))
	if err != nil {
		return p, err
	}
	if m := regexp.MustCompile(`(?m)^module\s+"?([^\s"]+)`).FindSubmatch(text); m != nil {
		p.Name = short(regexp.MustCompile(`/v[0-9]+$`).ReplaceAllString(string(m[1]), ""))
	}
	var mains []string
	for _, pattern := range []string{"*.go", "cmd/*/*.go"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return p, err
		}
		for _, file := range files {
			text, err := readManifest(file)
			if err != nil || strings.HasSuffix(file, "_test.go") || !regexp.MustCompile(`(?m)^package main\b`).Match(text) {
				continue
			}
			below, err := filepath.Rel(dir, filepath.Dir(file))
			if below != "." {
				below = "./" + below
			}
			if err == nil && !slices.Contains(mains, below) {
				mains = append(mains, below)
			}
		}
		if mains != nil {
			break
		}
	}
	if len(mains) != 1 {
		return p, fmt.Errorf("it has %d main packages at its root and below cmd: %s", len(mains), strings.Join(mains, ", "))
	}
	p.Entry = atPlace(dir, "go", "run", mains[0])
	return p, nil
}

// Compiled makes the server of a Go module start from a program that is built once. The argument
// path is where the program is put.
func (p *Project) Compiled(path string) {
	if p.Entry.Command == "go" {
		p.Build = append(p.Build, []string{"go", "build", "-o", path, p.Entry.Args[1]})
		p.Entry.Command, p.Entry.Args = path, nil
	}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func readManifest(path string) ([]byte, error) { return serversfile.ReadFile(path, maxManifest) }
