package serversfile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// RecordDigest is the key of a server's handshake record: its stored answers to initialize and to
// lists. On the machine where the server runs, the key also depends on the size and the time of the
// program files that the configuration names. An edited or upgraded program begins a new record,
// but keeps its [Server.Digest], its box and its installed packages.
func (s Server) RecordDigest() string { return NewRecord(s).Digest() }

// lookAgain is for how long Record.Digest returns its last result without a look at the files. A group
// of servers asks for the digests of all of them with each call.
const lookAgain = 10 * time.Millisecond

// Record keeps the result of [Server.RecordDigest] of one server, for callers that ask with each
// message. It is safe for concurrent use.
type Record struct {
	server Server
	known  atomic.Pointer[recorded]
}

// recorded has the last digest of a Record, and the files that it was made from.
type recorded struct {
	command string
	files   []programFile
	digest  string
	at      time.Time
}

// programFile tells versions of a program file apart by size and time, so that nothing has to read the
// file.
type programFile struct {
	path    string
	size    int64
	changed int64 // Unix time in nanoseconds
}

// NewRecord returns a Record that has not looked at the files yet.
func NewRecord(s Server) *Record { return &Record{server: s} }

// Digest returns the digest for the files as they were within the last 10 ms. PATH is searched
// for the command again only when the file that was found last time is gone.
func (r *Record) Digest() string {
	s, was := r.server, r.known.Load()
	if s.Path == "" || s.InPlace() {
		return s.Digest
	}
	now := recorded{digest: s.Digest, at: time.Now()}
	if was != nil && now.at.Sub(was.at) < lookAgain {
		return was.digest
	}
	if was != nil {
		now.look(s, was.command)
	}
	if now.command == "" {
		now.look(s, s.located())
	}
	if was != nil && slices.Equal(was.files, now.files) {
		now.digest = was.digest
	} else if len(now.files) > 0 {
		list := []any{s.Digest}
		for _, f := range now.files {
			list = append(list, f.path, f.size, f.changed)
		}
		sum := sha256.Sum256(encode(list))
		now.digest = hex.EncodeToString(sum[:])
	}
	r.known.Store(&now)
	return now.digest
}

// look sets r.files to the program files that exist, and r.command if the command exists.
func (r *recorded) look(s Server, command string) {
	r.files = r.files[:0]
	for _, path := range s.programs(command) {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		r.files = append(r.files, programFile{path, info.Size(), info.ModTime().UnixNano()})
		if path == command {
			r.command = command
		}
	}
}

// programs returns the paths of the program files that the configuration names: the command
// as it was located, the arguments, and the files below the host path.
func (s Server) programs(command string) (paths []string) {
	if command != "" {
		paths = append(paths, command)
	}
	for _, arg := range s.Args {
		if _, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(arg, "-") {
			arg = value
		}
		if arg = s.at(arg); arg != "" && isProgram(arg) {
			paths = append(paths, arg)
		}
	}
	switch folder := s.Box.HostPath; {
	case folder == HostPathAuto:
		for _, path := range slices.Clone(paths) {
			if isSource(path) {
				paths = append(paths, programsBelow(filepath.Dir(path))...)
			}
		}
	case folder != "":
		paths = append(paths, programsBelow(folder)...)
	}
	return paths
}

// at returns a path as a process of the server sees it. A path in a workspace, which is made
// for each process, becomes "".
func (s Server) at(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	if s.Cwd == "" {
		return ""
	}
	return filepath.Join(s.Cwd, path)
}

// located returns the path of the command, "" if it is not found.
func (s Server) located() string {
	if strings.Contains(s.Command, "/") {
		return s.at(s.Command)
	}
	for _, folder := range filepath.SplitList(cmp.Or(s.Env["PATH"], s.Path)) {
		if file := filepath.Join(folder, s.Command); filepath.IsAbs(folder) && isProgram(file) {
			return file
		}
	}
	return ""
}

// isProgram reports whether a path names a file that a server executes or is configured by.
// Data is left out, because the server itself changes it.
func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && (info.Mode()&0o111 != 0 || isSource(path) || isSettings(path))
}

func isSource(path string) bool {
	return slices.Contains([]string{
		".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".sh", ".rb", ".jar", ".php", ".pl", ".lua", ".wasm", ".dll", ".toml",
	}, filepath.Ext(path))
}

func isSettings(path string) bool {
	return slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(path))
}

// mostBelow is the largest number of entries of a host path that programsBelow visits. programsBelow
// must be quick, because requests wait for it.
const mostBelow = 1000

// programsBelow returns the source files below a folder, without dependencies and hidden folders. It adds
// the file that git changes with each commit and checkout.
func programsBelow(folder string) []string {
	skip := func(name string) bool {
		return strings.HasPrefix(name, ".") || slices.Contains([]string{"node_modules", "venv", "__pycache__"}, name)
	}
	return append([]string{filepath.Join(folder, ".git", "logs", "HEAD")}, below(folder, mostBelow, skip, isSource)...)
}

// below visits up to most entries below a folder, and returns the files for which keep is true. It does
// not go into folders whose name skip refuses. It leaves out what cannot be read.
func below(folder string, most int, skip, keep func(string) bool) (paths []string) {
	_ = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if most--; most < 0 {
			return fs.SkipAll
		}
		switch {
		case err != nil || path == folder:
		case entry.IsDir() && skip(entry.Name()):
			return fs.SkipDir
		case !entry.IsDir() && keep(path):
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}
