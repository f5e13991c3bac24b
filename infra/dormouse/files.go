package dormouse

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dormouse-mcp/dormouse/infra/internal/serversedit"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

// edited is a servers file that a command changes, with the .env beside it.
type edited struct {
	*serversedit.File
	env    *variables
	path   string
	before []byte
	saved  []byte   // content of the servers file after the last save, at first before
	typed  []string // names of variables that the user has typed since, which are in .env
}

// edit reads the servers file and .env. A missing file counts as empty.
func (f fileFlag) edit() (e *edited, err error) {
	e = &edited{}
	if e.path, err = filepath.Abs(f.Servers); err != nil {
		return nil, err
	}
	if e.before, err = readText(e.path, serversfile.MaxFile); err != nil {
		return nil, err
	}
	e.saved = e.before
	if e.File, err = serversedit.Parse(e.before, f.Servers); err != nil {
		return nil, err
	}
	e.env, err = openVariables(e.path)
	return e, err
}

// save writes the files if they have changed. It writes .env first, because dormouse run may read
// the servers file at once. On an error, both files are as other programs left them.
func (e *edited) save() error {
	err := e.env.save()
	if err == nil {
		err = e.saveServers()
	}
	if err != nil {
		e.undo()
	}
	return err
}

// saveServers writes the servers file if it has changed. It fails if another program has changed the
// file meanwhile.
func (e *edited) saveServers() error {
	text := e.Text()
	if bytes.Equal(text, e.saved) {
		return nil
	}
	if now, err := readText(e.path, serversfile.MaxFile); err != nil {
		return err
	} else if !bytes.Equal(now, e.saved) {
		return fmt.Errorf("another program has changed %s meanwhile, and the file is as that program left it; type the command again", e.name())
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(e.path); err == nil {
		mode = info.Mode().Perm()
	}
	err := writeText(e.path, text, mode)
	if err == nil {
		e.saved = text
	}
	return err
}

// undo restores the files as they were before the command. It leaves a servers file alone that
// somebody else has changed since, and takes only its own variables out of such a .env.
func (e *edited) undo() {
	back := func(path string, written, before []byte) {
		if now, err := readText(path, serversfile.MaxFile); err != nil || !bytes.Equal(now, written) || bytes.Equal(now, before) {
			return
		}
		if len(before) == 0 {
			_ = os.Remove(path) // an error is ignored: the file does no harm
			return
		}
		if info, err := os.Stat(path); err == nil {
			_ = writeText(path, before, info.Mode().Perm())
		}
	}
	back(e.path, e.Text(), e.before)
	left, now := e.env.before, e.env.Text()
	if is, err := readText(e.env.path, serversfile.MaxFile); err == nil && !bytes.Equal(is, now) {
		left, now = is, is
		for _, name := range append(e.env.Added(), e.typed...) {
			left = serversfile.SetEnv(left, name)
		}
	}
	back(e.env.path, now, left)
}

func (e *edited) name() string { return filepath.Base(e.path) }

// maxClientFile is the largest configuration file of a client that is read, in bytes. The file of
// Claude Code also contains much else.
const maxClientFile = 64 << 20

// readText reads a file. It fails if the file is longer than limit, in bytes. A missing file counts
// as empty.
func readText(path string, limit int64) ([]byte, error) {
	text, err := serversfile.ReadFile(path, limit)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// writeText replaces the content of a file atomically. It follows symbolic links, and creates
// missing folders.
func writeText(path string, text []byte, mode fs.FileMode) error {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // the mode of the file protects its content
		return err
	}
	return durable.WriteFile(path, text, mode)
}
