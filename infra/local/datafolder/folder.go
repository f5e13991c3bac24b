// Package datafolder is the folder that one `dormouse run` has for itself: its lock, its
// secret, and the places of its unix sockets.
package datafolder

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Folder is a data folder that this program has taken. Close gives it back.
type Folder struct {
	Path   string // absolute
	Secret []byte // of this folder, 32 bytes or more; it seals tickets

	sockets string // folder of the unix sockets, "" before it was made
	lock    *os.File
}

// Open takes a folder for this program alone, and makes what is missing in it. When it
// fails, the caller still closes the folder.
func Open(path string) (f *Folder, err error) {
	f = &Folder{}
	if f.Path, err = filepath.Abs(path); err != nil {
		return f, err
	}
	if err := os.MkdirAll(f.Path, 0o700); err != nil {
		return f, err
	}
	if f.lock, err = lockFile(f.File("lock")); err != nil {
		return f, fmt.Errorf("%s is in use by another dormouse run; stop that one or name another folder with --data: %w", f.Path, err)
	}
	if f.Secret, err = ownSecret(f.File(secretName)); err != nil {
		return f, err
	}
	f.sockets, err = newSockets(f.Path)
	return f, err
}

// Close removes the sockets and gives the folder back. A nil Folder has none.
func (f *Folder) Close() {
	if f == nil {
		return
	}
	if f.sockets != "" {
		_ = os.RemoveAll(f.sockets)
	}
	if f.lock != nil {
		_ = f.lock.Close()
	}
}

// File is the path of something in the folder.
func (f *Folder) File(name string) string { return filepath.Join(f.Path, name) }

// Socket is the path of one of the unix sockets.
func (f *Folder) Socket(name string) string { return filepath.Join(f.sockets, name+".sock") }

// Key proves to the control socket that its caller can read the folder, which programs in a
// sandbox cannot.
func (f *Folder) Key() string { return keyOf(f.Secret) }

func keyOf(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("control"))
	return hex.EncodeToString(mac.Sum(nil))
}

// Control tells a program that has not opened the folder at path where its control socket
// is, and the key for it. The error is [os.ErrNotExist] if nothing was ever run there.
func Control(path string) (socket, key string, err error) {
	folder, err := socketsOf(path)
	if err != nil {
		return "", "", err
	}
	secret, err := readSecret(filepath.Join(path, secretName))
	return filepath.Join(folder, "control.sock"), keyOf(secret), err
}

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

// secretName is the file of the secret, in hexadecimal.
const secretName = "secret"

// ownSecret reads the secret, and makes it the first time.
func ownSecret(path string) ([]byte, error) {
	secret, err := readSecret(path)
	if errors.Is(err, os.ErrNotExist) {
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
		err = WriteFile(path, []byte(hex.EncodeToString(secret)))
	}
	return secret, err
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

// socketsOf is where the sockets of a data folder are: in it, or, if its path is too long
// for a socket, in a folder of the user's own below the system's one for temporary files.
func socketsOf(data string) (string, error) {
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

// newSockets makes the folder anew. Nobody else may have one of that name.
func newSockets(data string) (string, error) {
	path, err := socketsOf(data)
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

// WriteFile writes a file for this user durably and as a whole: after a crash it is there
// with all its bytes, or as it was before.
func WriteFile(path string, text []byte) error {
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
