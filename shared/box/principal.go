package box

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/provision"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// In a value of Env, ${principal:NAME} stands for a secret of the principal, and
// ${principal_file:NAME} for the path of a file with it. These are the beginnings of both.
const (
	principalBegin = "${principal:"
	fileBegin      = "${principal_file:"
)

// processSecrets is the principal's secrets that a process got. The files with secrets are in the
// workspace, which no other sandbox can see.
type processSecrets struct {
	secrets map[string]storage.Secret
	folder  string // folder of the files with secrets, "" if the server reads none
}

// secretsFolder is a folder in the workspace, with one file for each secret.
const secretsFolder = ".dormouse-principal"

// stale reports whether the process must be replaced because a secret has changed. If the process
// reads the secret only from a file, stale writes the new secret to the file instead.
func (p *process) stale() bool {
	stale := false
	for _, name := range p.box.server.Principal {
		if now := p.group.secrets[name]; now.Value == p.keeping.given.secrets[name].Value {
			continue
		} else if !p.box.server.uses(principalBegin+name) && p.keeping.given.write(name, now.Value) == nil {
			p.keeping.given.secrets[name] = now
			continue
		}
		stale = true
	}
	return stale
}

// useless reports whether one of the secrets that the process was started with has expired, or was
// missing.
func (p *process) useless(now time.Time) bool {
	return slices.ContainsFunc(p.box.server.Principal, func(name string) bool {
		s := p.keeping.given.secrets[name]
		return s.Value == "" || !s.Until.IsZero() && now.After(s.Until)
	})
}

// uses reports whether a value of Env contains the template, which is given without its closing
// brace.
func (s Server) uses(template string) bool {
	for _, value := range s.Env {
		if strings.Contains(value, template+"}") {
			return true
		}
	}
	return false
}

// newFolder makes an empty folder for the files of secrets, or fails if the process has no
// workspace.
func newFolder(placed provision.Launch) (string, error) {
	if placed.Workspace == "" {
		return "", errors.New("it has no workspace for the files of ${principal_file:…}")
	}
	folder := filepath.Join(placed.Workspace, secretsFolder)
	if err := os.RemoveAll(folder); err != nil {
		return "", err
	}
	return folder, os.Mkdir(folder, 0o700)
}

func (f processSecrets) path(name string) string { return filepath.Join(f.folder, name) }

// write replaces the file of a secret, or removes it if value is "". write uses an [os.Root],
// because the server may have replaced the folder with a link to a place outside of the workspace.
func (f processSecrets) write(name, value string) error {
	if f.folder == "" {
		return fs.ErrNotExist
	}
	root, err := os.OpenRoot(filepath.Dir(f.folder))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	at, next := filepath.Join(secretsFolder, name), filepath.Join(secretsFolder, name+".next")
	if value == "" {
		if err := root.Remove(at); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := root.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return root.Rename(next, at)
}

// clear removes the files of secrets, so that they do not get into a snapshot of the workspace.
func (f processSecrets) clear() error {
	if f.folder == "" {
		return nil
	}
	root, err := os.OpenRoot(filepath.Dir(f.folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return root.RemoveAll(secretsFolder)
}
