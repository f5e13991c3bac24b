package memory

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/dormouse-mcp/dormouse/shared/core/durable"
)

// KeyFile is the name of the file with a machine's [Root], in the data folder. A file lock on
// KeyFile + ".lock" guards this file.
const KeyFile = "memory.key"

const keyBytes = 32

// Root is the secret of a machine, from which the keys of all its tenants are derived.
type Root struct{ secret []byte }

// Tenant is the key of one tenant. It cannot decrypt the images of another tenant.
type Tenant struct {
	name   string
	secret []byte
}

// OpenRoot reads the Root from a file. If there is no file, OpenRoot makes one with mode 0600.
// Several programs may call OpenRoot at the same time.
func OpenRoot(path string) (Root, error) {
	if root, err := readRoot(path); !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return Root{}, fmt.Errorf("the key of kept memory: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return Root{}, fmt.Errorf("the key of kept memory: %w", err)
	}
	defer func() { _ = lock.Close() }() // closing releases the lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return Root{}, fmt.Errorf("the key of kept memory: %w", err)
	}
	if root, err := readRoot(path); !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	secret := make([]byte, keyBytes)
	_, _ = rand.Read(secret) // never fails
	if err := durable.WriteFile(path, secret, 0o600); err != nil {
		return Root{}, fmt.Errorf("the key of kept memory: %w", err)
	}
	return Root{secret}, nil
}

func readRoot(path string) (Root, error) {
	secret, err := os.ReadFile(path)
	switch {
	case err != nil:
		return Root{}, fmt.Errorf("the key of kept memory: %w", err)
	case len(secret) != keyBytes:
		return Root{}, fmt.Errorf("the key of kept memory: %s has %d bytes instead of %d: remove it, and what is kept is lost once", path, len(secret), keyBytes)
	}
	return Root{secret}, nil
}

// Tenant derives the key of a tenant from its name.
func (r Root) Tenant(name string) (Tenant, error) {
	secret, err := hkdf.Key(sha256.New, r.secret, nil, "dormouse memory, tenant "+name, keyBytes)
	return Tenant{name, secret}, err
}

// image derives the key of one image from its header.
func (t Tenant) image(h Header) ([]byte, error) {
	return hkdf.Key(sha256.New, t.secret, h.Salt, "dormouse memory, image of box "+h.Box+"\x00"+strconv.FormatInt(h.Generation, 10), keyBytes)
}
