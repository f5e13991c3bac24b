package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// openData takes the data folder for this program alone, and makes what is missing
// in it.
func (m *machine) openData(context.Context) (err error) {
	if m.data, err = filepath.Abs(m.cfg.Data); err != nil {
		return err
	}
	if err := os.MkdirAll(m.data, 0o700); err != nil {
		return err
	}
	if m.lock, err = lockFile(filepath.Join(m.data, "lock")); err != nil {
		return fmt.Errorf("%s is in use by another dormouse run; stop that one or name another folder with --data: %w", m.data, err)
	}
	if m.secret, err = secretFile(filepath.Join(m.data, secretName)); err != nil {
		return err
	}
	if m.store, err = StoreName(m.cfg.Store, m.data); err != nil {
		return err
	}
	m.sockets, err = socketFolder(m.data)
	print := journal.HumanPrinter(m.cfg.Out)
	if m.cfg.JSON {
		print = journal.JSONPrinter(m.cfg.Out)
	}
	m.recorder = journal.NewRecorder(print)
	return err
}

// socketFile is the path of one of the unix sockets.
func (m *machine) socketFile(name string) string { return filepath.Join(m.sockets, name+".sock") }

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// secretName is the file of the ticket secret in the data folder.
const secretName = "secret"

// secretFile reads the ticket secret, and makes it the first time.
func secretFile(path string) (string, error) {
	secret, err := readSecret(path)
	if errors.Is(err, os.ErrNotExist) {
		secret = newSecret()
		err = writeDurably(path, []byte(hex.EncodeToString(secret)))
	}
	return hex.EncodeToString(secret), err
}

func readSecret(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	secret, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) < 32 {
		return nil, fmt.Errorf("%s does not hold 32 bytes in hexadecimal; delete it to have it made anew", path)
	}
	return secret, nil
}

// maxSocketPath leaves room for the names of sockets below a folder: a unix
// socket's path has 104 bytes on macOS and 108 on Linux.
const maxSocketPath = 80

// socketPath is where the sockets of a data folder are: in it, or, if its path is
// too long for a socket, in a folder of the user's own below the system's one for
// temporary files.
func socketPath(data string) (string, error) {
	data, err := filepath.Abs(data)
	if err != nil {
		return "", err
	}
	if path := filepath.Join(data, "run"); len(path) <= maxSocketPath {
		return path, nil
	}
	sum := sha256.Sum256([]byte(data))
	return filepath.Join(os.TempDir(), fmt.Sprintf("dormouse-%d-%s", os.Getuid(), hex.EncodeToString(sum[:6]))), nil
}

// socketFolder makes the folder anew. Nobody else may have one of that name.
func socketFolder(data string) (string, error) {
	path, err := socketPath(data)
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(path); err != nil {
		return "", err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	return path, nil
}

// writeDurably writes a file for this user as a whole: after a crash it is there with all
// its bytes, or it is not there.
func writeDurably(path string, text []byte) error {
	part := path + ".new"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
