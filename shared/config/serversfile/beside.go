package serversfile

import (
	"os"
	"path/filepath"
	"strings"
)

// beside turns relative paths of a server into paths in the folder of the servers file, on the
// machine where the server runs. A server without a workspace works in that folder, unless its cwd
// names another one. A server with a host path has its files there, and stays unchanged.
func (s *Server) beside(folder string) {
	if folder == "" || s.Box.HostPath != "" && s.Box.HostPath != HostPathAuto {
		return
	}
	workspace := s.Workspace()
	if !filepath.IsAbs(s.Cwd) && (s.Cwd != "" || !workspace) {
		s.Cwd = filepath.Join(folder, s.Cwd)
	}
	if strings.Contains(s.Command, "/") && !filepath.IsAbs(s.Command) {
		at := filepath.Join(folder, s.Command)
		switch {
		case exists(at):
			s.Command = at
		case workspace, exists(filepath.Join(s.Cwd, s.Command)): // the process finds the program in its working folder
		default:
			s.Command = at
		}
	}
	for i, arg := range s.Args {
		flag, value, ok := strings.Cut(arg, "=")
		if ok && strings.HasPrefix(flag, "-") {
			s.Args[i] = flag + "=" + s.pathOf(folder, value)
			continue
		}
		s.Args[i] = s.pathOf(folder, arg)
	}
}

// pathOf returns the path of the file that an argument names in the folder of the servers file. If
// the argument names no file, pathOf returns the argument. A word without a dot or a slash never
// names a file. pathOf also returns the argument if the file is in the folder that cwd names,
// because the server finds it there.
func (s *Server) pathOf(folder, arg string) string {
	if !strings.ContainsAny(arg, "./") || filepath.IsAbs(arg) || strings.HasPrefix(arg, "-") {
		return arg
	}
	at := filepath.Join(folder, arg)
	if !exists(at) || s.Cwd != "" && s.Cwd != folder && exists(filepath.Join(s.Cwd, arg)) {
		return arg
	}
	return at
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
