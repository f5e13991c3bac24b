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
	if m.secret, err = secretFile(filepath.Join(m.data, "secret")); err != nil {
		return err
	}
	if m.store, err = storeName(m.cfg.Store, m.data); err != nil {
		return err
	}
	m.sockets, err = socketFolder(m.data)
	print := HumanPrinter(m.cfg.Out)
	if m.cfg.JSON {
		print = JSONPrinter(m.cfg.Out)
	}
	m.recorder = NewRecorder(print)
	return err
}

const sqlite = "sqlite:"

// storeName is what the functions find in DORMOUSE_STORE. They have another working
// folder, so that a path must be absolute.
func storeName(store, data string) (string, error) {
	path, ok := strings.CutPrefix(store, sqlite)
	switch {
	case store == "":
		return sqlite + filepath.Join(data, StoreFile), nil
	case !ok:
		return store, nil
	case path == "":
		return "", errors.New("the store sqlite: has no path; want sqlite:PATH")
	}
	path, err := filepath.Abs(path)
	return sqlite + path, err
}

// SQLite is the path of the file that a [Config] with this Store and Data keeps
// sessions in; false means that they are somewhere else.
func SQLite(store, data string) (path string, ok bool, err error) {
	if data, err = filepath.Abs(data); err != nil {
		return "", false, err
	}
	name, err := storeName(store, data)
	if err != nil {
		return "", false, err
	}
	path, ok = strings.CutPrefix(name, sqlite)
	return path, ok, nil
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

// secretFile reads the ticket secret, and makes it the first time.
func secretFile(path string) (string, error) {
	secret, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		secret = []byte(newSecret())
		err = os.WriteFile(path, secret, 0o600)
	}
	if err != nil {
		return "", err
	}
	s := strings.TrimSpace(string(secret))
	if raw, err := hex.DecodeString(s); err != nil || len(raw) < 32 {
		return "", fmt.Errorf("%s does not hold 32 bytes in hexadecimal; delete it to have it made anew", path)
	}
	return s, nil
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
