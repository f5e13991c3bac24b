package dormouse

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

// serversFile is the flag of commands that change the servers file.
type serversFile struct{ fileFlag }

// edited is a servers file, and the file of variables beside it, while a command changes
// them.
type edited struct {
	*serversedit.File
	env    *variables
	path   string
	before []byte
}

// open reads both files; one that is missing is empty.
func (f serversFile) open() (e *edited, err error) {
	e = &edited{}
	if e.path, err = filepath.Abs(f.Servers); err != nil {
		return nil, err
	}
	if e.before, err = readText(e.path, serversfile.MaxFile); err != nil {
		return nil, err
	}
	if e.File, err = serversedit.Parse(e.before, f.Servers); err != nil {
		return nil, err
	}
	e.env, err = openVariables(e.path)
	return e, err
}

// save writes what has changed. The variables come first, so that a run that reads the
// servers file at once finds them.
func (e *edited) save() error {
	if err := e.env.save(); err != nil {
		return err
	}
	return e.saveServers()
}

func (e *edited) saveServers() error {
	if text := e.Text(); !bytes.Equal(text, e.before) {
		mode := fs.FileMode(0o644)
		if info, err := os.Stat(e.path); err == nil {
			mode = info.Mode().Perm()
		}
		return writeText(e.path, text, mode)
	}
	return nil
}

// undo takes back what the command has written, unless somebody has changed it since.
func (e *edited) undo() {
	back := func(path string, written, before []byte) {
		if now, err := readText(path, serversfile.MaxFile); err != nil || !bytes.Equal(now, written) || bytes.Equal(now, before) {
			return
		}
		if before == nil {
			_ = os.Remove(path) // a file that stays is of no harm
			return
		}
		if info, err := os.Stat(path); err == nil {
			_ = writeText(path, before, info.Mode().Perm())
		}
	}
	back(e.path, e.Text(), e.before)
	if env, err := readText(e.env.path, serversfile.MaxFile); err == nil && bytes.HasPrefix(env, e.env.before) {
		back(e.env.path, env, e.env.before) // .env also has values that add has asked the user for
	}
}

func (e *edited) name() string { return filepath.Base(e.path) }

// maxClientFile is the largest file of a client that is read, in bytes. Claude Code keeps
// much more than servers in its file.
const maxClientFile = 64 << 20

// readText reads a file of at most some bytes; one that is not there is empty.
func readText(path string, most int64) ([]byte, error) {
	text, err := serversedit.ReadFile(path, most)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// writeText replaces the content of a file as a whole. It follows symbolic links, and
// makes missing folders.
func writeText(path string, text []byte, mode fs.FileMode) error {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as an editor makes a project's folder
		return err
	}
	return durable.WriteFile(path, text, mode)
}
