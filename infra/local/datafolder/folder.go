// Package datafolder manages the data folder, which one `dormouse run` at a time uses: its lock,
// its secret, and the paths of its unix sockets.
package datafolder

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

// Folder is a data folder that this program has locked. Close unlocks it.
type Folder struct {
	Path   string // absolute path
	Secret []byte // key for encryption, at least 32 random bytes; no other folder has the same
	// Replaced reports that the secret was created just now, although an earlier run has used the
	// folder.
	Replaced bool

	sockets string // folder of the unix sockets; "" until it was created
	lock    *os.File
}

// Open locks a folder for this program, and creates what is missing in it. The caller must call
// Close even if Open fails.
func Open(path string) (f *Folder, err error) {
	f = &Folder{}
	if f.Path, err = filepath.Abs(path); err != nil {
		return f, err
	}
	if err := os.MkdirAll(f.Path, 0o700); err != nil {
		return f, f.unusable(err)
	}
	f.Replaced = SecretLost(f.Path)
	f.lock, err = lockFile(f.File("lock"))
	if errors.Is(err, syscall.EWOULDBLOCK) {
		by := ""
		if pid := Holder(f.Path); pid != 0 {
			by = fmt.Sprintf(", process %d", pid)
		}
		return f, fmt.Errorf("%s is in use by another dormouse run%s; stop that one or name another folder with --data", f.Path, by)
	}
	if err != nil {
		return f, f.unusable(err)
	}
	if f.Secret, err = ownSecret(f.File(SecretFile)); err != nil {
		return f, f.unusable(err)
	}
	f.sockets, err = newSockets(f.Path)
	return f, f.unusable(err)
}

// unusable adds to an error what the user can do, if the folder cannot be written.
func (f *Folder) unusable(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk of the data folder %s is full: free some room, or name another folder with --data: %w", f.Path, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("the data folder %s cannot be written by uid %d: make it writable, or name another folder with --data: %w", f.Path, os.Geteuid(), err)
	default:
		return err
	}
}

// Close removes the sockets and unlocks the folder. On a nil Folder it does nothing.
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

// File returns the path of the file with this name in the folder.
func (f *Folder) File(name string) string { return filepath.Join(f.Path, name) }

// Socket returns the path of the unix socket with this name.
func (f *Folder) Socket(name string) string { return filepath.Join(f.sockets, name+".sock") }

// Key returns the key that callers of the control socket must show. The key proves that a caller
// can read the folder, which programs in a sandbox cannot.
func (f *Folder) Key() string { return keyOf(f.Secret) }

func keyOf(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("control"))
	return hex.EncodeToString(mac.Sum(nil))
}

// Control returns the path of the control socket of the data folder at path, and the key that its
// callers must show. The error is [os.ErrNotExist] if no run has ever used the folder.
func Control(path string) (socket, key string, err error) {
	folder, err := socketsOf(path)
	if err != nil {
		return "", "", err
	}
	secret, err := readSecret(filepath.Join(path, SecretFile))
	if err != nil {
		return "", "", err
	}
	if err := sameOwner(folder, filepath.Join(path, SecretFile)); err != nil {
		return "", "", err
	}
	return filepath.Join(folder, "control.sock"), keyOf(secret), nil
}

// sameOwner returns an error if the folder of the sockets belongs neither to the owner of file, nor
// to this user, nor to root. The folder of the sockets may lie in the system's temporary folder,
// where anybody can create it. Whoever listens in it receives the key.
func sameOwner(folder, file string) error {
	var of, want syscall.Stat_t
	switch err := syscall.Lstat(folder, &of); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // nobody listens
	case err != nil:
		return &fs.PathError{Op: "lstat", Path: folder, Err: err}
	}
	if err := syscall.Stat(file, &want); err != nil {
		return &fs.PathError{Op: "stat", Path: file, Err: err}
	}
	if of.Uid != want.Uid && of.Uid != 0 && int(of.Uid) != os.Getuid() {
		return fmt.Errorf("%s is of another user, who could answer in place of dormouse run: remove it, or name a data folder with a shorter path", folder)
	}
	return nil
}

// lockFile locks a file, and writes the id of this process into it.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	// An error is ignored: the id is only for messages of other programs.
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// Holder returns the id of the process that uses the folder at path, or has used it last. It
// returns 0 if the lock file names none.
func Holder(path string) int {
	text, _ := os.ReadFile(filepath.Join(path, "lock"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// SecretFile is the name of the file with the secret, in hexadecimal.
const SecretFile = "secret"

// LostWithSecret says what is lost if a folder that was in use gets a new secret.
const LostWithSecret = "registrations of clients, the accounts of users at third parties and what was kept for auditors are lost"

// Secret returns the secret of the folder at path. It creates the folder and the secret if missing.
func Secret(path string) ([]byte, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	return ownSecret(filepath.Join(path, SecretFile))
}

// SecretLost reports whether the folder at path has no secret, though a run has used it.
func SecretLost(path string) bool {
	_, used := os.Stat(filepath.Join(path, "lock"))
	_, err := os.Stat(filepath.Join(path, SecretFile))
	return used == nil && errors.Is(err, fs.ErrNotExist)
}

// ownSecret reads the secret, and creates a missing one.
func ownSecret(path string) ([]byte, error) {
	secret, err := readSecret(path)
	if errors.Is(err, os.ErrNotExist) {
		secret = make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
		err = durable.WriteFile(path, []byte(hex.EncodeToString(secret)), 0o600)
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
		return nil, fmt.Errorf("%s does not hold 32 bytes in hexadecimal: restore it from a backup; without one, delete it, and "+LostWithSecret, path)
	}
	return secret, nil
}

// maxSocketPath is the longest path in bytes of a folder for sockets, which leaves room for their
// names. The path of a unix socket has at most 104 bytes on macOS and 108 on Linux.
const maxSocketPath = 80

// socketsOf returns the folder for the sockets of a data folder: its subfolder run. If that path
// is too long, it is a folder of this user in the system's temporary folder.
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

// newSockets deletes the folder for sockets and creates it again. It fails if another user has a
// folder of that name.
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
