package serversfile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Folder returns the folder whose files an author of the server edits: its host path, the folder of its
// script, or its working folder. It is "" for a server that nobody edits on this machine: a package, an
// image, a remote server, or one in Go that is part of this program.
func (s Server) Folder() string {
	packages, _ := s.packages()
	if _, image, _ := s.Container(); s.InPlace() || image || len(packages) > 0 {
		return ""
	}
	if s.Box.HostPath != "" && s.Box.HostPath != HostPathAuto {
		return s.Box.HostPath
	}
	for _, arg := range s.Args {
		path := s.at(arg)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && isCode(path) {
			return filepath.Dir(path)
		}
	}
	if strings.Contains(s.Command, "/") && s.located() != "" {
		return filepath.Dir(s.located())
	}
	return s.Cwd
}

// mostOwn is the largest number of entries of a server's folder that Sources visits.
const mostOwn = 5000

// Sources returns the files of code below the server's folder, and the program files that its
// configuration names. Sources leaves out data, which the server itself changes, hidden folders,
// dependencies and the output of builds. The order is stable.
func (s Server) Sources() []string {
	folder := s.Folder()
	if folder == "" {
		return nil
	}
	paths := append(s.programs(s.located()), below(folder, mostOwn, IsBuilt, isCode)...)
	slices.Sort(paths)
	return slices.Compact(paths)
}

// IsBuilt reports whether a folder of this name in a project has files that nobody edits:
// hidden ones, dependencies, and the output of builds.
func IsBuilt(name string) bool {
	return strings.HasPrefix(name, ".") || slices.Contains([]string{
		"node_modules", "venv", "env", "site-packages", "__pycache__", "vendor", "dist", "build", "out", "target", "bin", "obj", "coverage",
	}, name)
}

// isCode reports whether a file is one of source code, or a template. A file of JSON, YAML or
// text may be data, which a server writes.
func isCode(path string) bool {
	return isSource(path) || slices.Contains([]string{
		".go", ".rs", ".java", ".kt", ".cs", ".swift", ".ex", ".exs", ".tmpl", ".j2", ".jinja", ".jinja2", ".sql", ".graphql",
	}, filepath.Ext(path)) || slices.Contains([]string{"package.json", "tsconfig.json", "requirements.txt"}, filepath.Base(path))
}
